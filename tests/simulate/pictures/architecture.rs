//! The path of a request through the components.

use plotters::element::{PathElement, Polygon, Rectangle};
use plotters::style::Color as _;
use plotters::style::RGBColor;
use plotters::style::text_anchor::HPos;

use super::chart::{ALLOWED, AnyError, Area, DENIED, FAINT, INK, REMAINING, svg, write};

pub(super) fn picture() -> String {
    svg((800, 330), |area| {
        frame(area, (130, 20), (670, 165), "RateLimitLayer")?;
        block(area, (10, 60), 90, INK, &["request"])?;
        block(area, (150, 60), 130, INK, &["key extractor", "PeerIp, ApiKey, .."])?;
        block(area, (330, 60), 140, INK, &["limiter", "acquire(key, cost)"])?;
        block(area, (520, 60), 130, INK, &["decision", "allowed or denied"])?;
        block(area, (690, 60), 100, ALLOWED, &["inner service", "if allowed"])?;
        block(area, (690, 115), 100, DENIED, &["responder", "429, if denied"])?;
        for (from, to) in
            [((100, 80), (150, 80)), ((280, 80), (330, 80)), ((470, 80), (520, 80)), ((650, 80), (690, 80))]
        {
            arrow(area, &[from, to])?;
        }
        arrow(area, &[(585, 100), (585, 135), (690, 135)])?;

        block(area, (190, 205), 180, INK, &["Memory", "a table of states"])?;
        block(area, (430, 205), 180, INK, &["Redis", "one script for all processes"])?;
        arrow(area, &[(380, 100), (380, 185), (280, 185), (280, 205)])?;
        arrow(area, &[(420, 100), (420, 185), (520, 185), (520, 205)])?;
        block(
            area,
            (190, 275),
            420,
            REMAINING,
            &["algorithm", "(state, now, cost) to (decision, next state): in Rust and in Lua"],
        )?;
        arrow(area, &[(280, 245), (280, 275)])?;
        arrow(area, &[(520, 245), (520, 275)])
    })
    .expect("a picture")
}

/// Draws a box with a name, and a remark below it.
fn block(
    area: &Area<'_>,
    (left, top): (i32, i32),
    width: i32,
    colour: RGBColor,
    lines: &[&str],
) -> Result<(), AnyError> {
    let (right, bottom) = (left + width, top + 40);
    let corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)];
    area.draw(&PathElement::new(corners, colour.stroke_width(2)))?;
    let centre = i32::midpoint(left, right);
    match lines {
        [name, remark] => {
            write(area, name, (centre, top + 14), 12, HPos::Center, INK)?;
            write(area, remark, (centre, top + 29), 10, HPos::Center, FAINT)
        }
        lines => write(area, &lines.concat(), (centre, top + 20), 12, HPos::Center, INK),
    }
}

/// Draws a light frame with a name.
fn frame(area: &Area<'_>, (left, top): (i32, i32), (right, bottom): (i32, i32), name: &str) -> Result<(), AnyError> {
    area.draw(&Rectangle::new([(left, top), (right, bottom)], FAINT))?;
    write(area, name, (left + 8, top + 14), 12, HPos::Left, FAINT)
}

/// Draws lines between points, with a head at the last one.
fn arrow(area: &Area<'_>, points: &[(i32, i32)]) -> Result<(), AnyError> {
    area.draw(&PathElement::new(points.to_vec(), INK))?;
    let [.., (from_x, from_y), (x, y)] = *points else { return Ok(()) };
    let (dx, dy) = ((x - from_x).signum(), (y - from_y).signum());
    let (back_x, back_y) = (x - 7 * dx, y - 7 * dy);
    let head = vec![(x, y), (back_x + 4 * dy, back_y + 4 * dx), (back_x - 4 * dy, back_y - 4 * dx)];
    Ok(area.draw(&Polygon::new(head, INK.filled()))?)
}
