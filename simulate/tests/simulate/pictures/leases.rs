//! One key of two processes with leases: what Redis holds for them, and what they spend.

use plotters::element::Rectangle;
use plotters::style::text_anchor::HPos;
use plotters::style::{Color as _, RGBColor};

use super::blocks::{arrow, block, frame};
use tower_ratelimit_simulate::AnyError;
use tower_ratelimit_simulate::chart::{ALLOWED, Area, DELAYED, FAINT, INK, REMAINING, svg, write};

/// Pixels per unit of the quota.
const SCALE: i32 = 6;

pub(super) fn picture() -> String {
    svg((800, 300), |area| {
        process(area, 20, ALLOWED, "process A holds 20 units", 14)?;
        process(area, 420, DELAYED, "process B holds 10 units", 3)?;

        frame(area, (20, 190), (780, 280), "Redis: one key, a quota of 120")?;
        let parts = [
            (60, INK, "charged: 60"),
            (20, ALLOWED, "held for A: 20"),
            (10, DELAYED, "B: 10"),
            (30, REMAINING, "free: 30"),
        ];
        let mut left = 40;
        for (units, colour, name) in parts {
            let right = left + units * SCALE;
            area.draw(&Rectangle::new([(left, 220), (right, 244)], colour.filled()))?;
            write(area, name, (i32::midpoint(left, right), 262), 11, HPos::Center, INK)?;
            left = right;
        }

        for (at, name) in [(120, "report: 14 spent, hold 20 again"), (520, "report: 3 spent, hold 10 again")] {
            arrow(area, &[(at, 135), (at, 190)])?;
            write(area, name, (at + 12, 162), 11, HPos::Left, FAINT)?;
        }
        Ok(())
    })
    .expect("a picture")
}

/// Draws a process with its requests and the units of its lease, of which `spent` are spent.
fn process(area: &Area<'_>, left: i32, colour: RGBColor, name: &str, spent: i32) -> Result<(), AnyError> {
    frame(area, (left, 20), (left + 360, 135), name)?;
    block(area, (left + 15, 60), 130, INK, &["requests", "decided in memory"])?;
    arrow(area, &[(left + 145, 80), (left + 195, 80)])?;
    block(area, (left + 195, 60), 150, colour, &["lease", &format!("{spent} spent, until it expires")])
}
