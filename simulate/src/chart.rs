//! Charts as SVG, in colours for light and dark pages.
//!
//! The same input makes the same bytes on every machine: plotters computes the layout without fonts, and writes whole
//! pixels.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::{AnyError, Bin, Series};

/// The area of a picture, or a part of it.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

// The colours of light pages. `STYLE` replaces them on dark ones.
/// The background.
pub const PAPER: RGBColor = RGBColor(0xFF, 0xFF, 0xFF);
/// Lines and text.
pub const INK: RGBColor = RGBColor(0x1F, 0x23, 0x28);
/// Less important lines and text.
pub const FAINT: RGBColor = RGBColor(0x8C, 0x95, 0x9F);
/// Allowed requests.
pub const ALLOWED: RGBColor = RGBColor(0x09, 0x69, 0xDA);
/// Delayed requests.
pub const DELAYED: RGBColor = RGBColor(0x82, 0x50, 0xDF);
/// Denied requests.
pub const DENIED: RGBColor = RGBColor(0xD9, 0x6C, 0x00);
/// The remaining cost.
pub const REMAINING: RGBColor = RGBColor(0x8F, 0xC8, 0xA4);

const STYLE: &str = "<style>@media (prefers-color-scheme:dark){\
[fill='#FFFFFF']{fill:#0D1117}[fill='#1F2328']{fill:#E6EDF3}[stroke='#1F2328']{stroke:#E6EDF3}\
[fill='#8C959F']{fill:#7D8590}[stroke='#8C959F']{stroke:#7D8590}\
[fill='#0969DA']{fill:#58A6FF}[stroke='#0969DA']{stroke:#58A6FF}\
[fill='#8250DF']{fill:#BC8CFF}[fill='#D96C00']{fill:#F0883E}[stroke='#D96C00']{stroke:#F0883E}\
[fill='#8FC8A4']{fill:#2F6F46}[stroke='#8FC8A4']{stroke:#3FB950}}</style>";

/// The height of a panel: a title, the requests, the starts if any is delayed, the remaining cost, and the time.
const TITLE: u32 = 22;
const REQUESTS: u32 = 62;
const STARTS: u32 = 34;
const REST: u32 = 62;
const TIME: u32 = 20;
const LEGEND: u32 = 24;

/// One chart: the decisions on one traffic.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The line above the chart.
    pub title: String,
    /// The decisions.
    pub series: Series,
}

/// Draws panels in rows of `columns`, above a legend.
///
/// # Errors
///
/// Returns an error if the picture has no area, or if plotters fails.
pub fn draw(panels: &[Panel], columns: usize, width: u32) -> Result<String, AnyError> {
    let has_delays = panels.iter().any(|panel| panel.series.bins.iter().any(|bin| bin.delayed > 0));
    let height = TITLE + REQUESTS + if has_delays { STARTS } else { 0 } + REST + TIME;
    let rows = panels.len().div_ceil(columns.max(1));
    let size = (width, height * u32::try_from(rows)? + LEGEND);
    svg(size, |root| {
        let (grid, legend) = root.split_vertically(size.1 - LEGEND);
        for (panel, area) in panels.iter().zip(grid.split_evenly((rows, columns))) {
            draw_panel(panel, &area, has_delays)?;
        }
        draw_legend(&legend, has_delays)
    })
}

/// Makes an SVG of this size.
///
/// # Errors
///
/// Returns an error if `draw` or plotters fails.
pub fn svg(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Result<(), AnyError>) -> Result<String, AnyError> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&PAPER)?;
        draw(&root)?;
        root.present()?;
    }
    let text = text.replace(" opacity=\"1\"", "").replace(" \"/>", "\"/>").replacen(">\n", &format!(">{STYLE}\n"), 1);
    Ok(text)
}

/// Writes text of this height, from the place `at`, around it, or up to it.
///
/// # Errors
///
/// Returns an error if plotters fails.
pub fn write(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    height: u32,
    h_pos: HPos,
    colour: RGBColor,
) -> Result<(), AnyError> {
    // plotters writes 1 / 1.24 of the height as the size of the font.
    let style = TextStyle::from(("sans-serif", f64::from(height) * 1.24).into_font())
        .color(&colour)
        .pos(Pos::new(h_pos, VPos::Center));
    Ok(area.draw(&Text::new(text.to_owned(), at, style))?)
}

fn draw_panel(panel: &Panel, area: &Area<'_>, has_delays: bool) -> Result<(), AnyError> {
    let series = &panel.series;
    write(area, &panel.title, (10, 12), 12, HPos::Left, INK)?;
    let (_, area) = area.split_vertically(TITLE);
    let (requests, area) = area.split_vertically(REQUESTS);
    draw_bars(
        &requests,
        series,
        "requests",
        &[
            (DENIED, |bin| bin.allowed + bin.delayed + bin.denied),
            (DELAYED, |bin| bin.allowed + bin.delayed),
            (ALLOWED, |bin| bin.allowed),
        ],
    )?;
    let (starts, area) = area.split_vertically(if has_delays { STARTS } else { 0 });
    if has_delays {
        draw_bars(&starts, series, "starts", &[(ALLOWED, |bin| bin.starts)])?;
    }
    draw_remaining(&area, series)
}

/// The place of the data in a part of a panel.
const LEFT: i32 = 62;
const RIGHT: i32 = 18;

/// Maps times and values to the pixels of an area whose data is `height` pixels high.
struct Scale {
    width: u64,
    height: u64,
    span: u64,
    max: u64,
}

impl Scale {
    fn new(area: &Area<'_>, height: u32, series: &Series, max: u64) -> Self {
        let width = i64::from(area.dim_in_pixel().0) - i64::from(LEFT + RIGHT);
        let span = u64::try_from(series.span.as_micros()).unwrap_or(u64::MAX).max(1);
        Self { width: u64::try_from(width).unwrap_or(1), height: u64::from(height), span, max: max.max(1) }
    }

    fn x(&self, micros: u64) -> i32 {
        LEFT + ratio(micros.min(self.span), self.width, self.span)
    }

    fn y(&self, value: u64) -> i32 {
        ratio(self.max - value.min(self.max), self.height, self.max)
    }
}

/// Returns `value * factor / divisor`, rounded to the nearest pixel.
fn ratio(value: u64, factor: u64, divisor: u64) -> i32 {
    let scaled = (u128::from(value) * u128::from(factor) * 2 + u128::from(divisor)) / (u128::from(divisor) * 2);
    i32::try_from(scaled).unwrap_or(i32::MAX)
}

/// Draws the numbers of each bin. Each number includes the one after it, which is drawn in front.
fn draw_bars(
    area: &Area<'_>,
    series: &Series,
    name: &str,
    numbers: &[(RGBColor, fn(&Bin) -> u64)],
) -> Result<(), AnyError> {
    let height = area.dim_in_pixel().1 - 8;
    let max = series.bins.iter().filter_map(|bin| numbers.first().map(|(_, number)| number(bin))).max().unwrap_or(0);
    let scale = Scale::new(area, height, series, max);
    let count = series.bins.len() as u64;
    for (layer, (colour, number)) in numbers.iter().enumerate() {
        let in_front = |bin| numbers.get(layer + 1).map_or(0, |(_, number)| number(bin));
        let steps = (0..).zip(&series.bins).map(|(index, bin)| {
            let visible = if number(bin) > in_front(bin) { number(bin) } else { 0 };
            (LEFT + ratio(index, scale.width, count), LEFT + ratio(index + 1, scale.width, count), scale.y(visible))
        });
        fill(area, steps, scale.y(0), *colour)?;
    }
    draw_axis(area, &scale, name)
}

/// Fills the area between adjoining steps (left, right and top) and the base line.
fn fill(
    area: &Area<'_>,
    steps: impl Iterator<Item = (i32, i32, i32)>,
    base: i32,
    colour: RGBColor,
) -> Result<(), AnyError> {
    let (mut corners, mut end, mut height) = (Vec::new(), 0, base);
    for (left, right, top) in steps {
        if top != height {
            corners.extend([(left, height), (left, top)]);
        }
        (end, height) = (right, top);
    }
    if height != base {
        corners.extend([(end, height), (end, base)]);
    }
    if !corners.is_empty() {
        area.draw(&Polygon::new(corners, colour.filled()))?;
    }
    Ok(())
}

fn draw_remaining(area: &Area<'_>, series: &Series) -> Result<(), AnyError> {
    let scale = Scale::new(area, REST - 8, series, series.limit);
    let steps = series.remaining.iter().enumerate().map(|(index, &(time, remaining))| {
        let until = series.remaining.get(index + 1).map_or(scale.span, |&(next, _)| next);
        (scale.x(time), scale.x(until), scale.y(remaining))
    });
    fill(area, steps, scale.y(0), REMAINING)?;
    draw_axis(area, &scale, "remaining")?;
    draw_times(area, &scale)
}

/// Draws the base line, the name and the maximum.
fn draw_axis(area: &Area<'_>, scale: &Scale, name: &str) -> Result<(), AnyError> {
    let base = scale.y(0);
    area.draw(&PathElement::new([(LEFT, base), (scale.x(scale.span), base)], INK))?;
    write(area, name, (LEFT - 6, base - 5), 10, HPos::Right, FAINT)?;
    write(area, &scale.max.to_string(), (LEFT - 6, 5), 10, HPos::Right, INK)
}

/// Draws a tick at each round time, of which there are at most six.
fn draw_times(area: &Area<'_>, scale: &Scale) -> Result<(), AnyError> {
    const STEPS: [(u64, u64, &str); 20] = [
        (1, 1_000, "ms"),
        (10, 1_000, "ms"),
        (50, 1_000, "ms"),
        (200, 1_000, "ms"),
        (1, 1_000_000, "s"),
        (2, 1_000_000, "s"),
        (5, 1_000_000, "s"),
        (10, 1_000_000, "s"),
        (20, 1_000_000, "s"),
        (1, 60_000_000, "min"),
        (2, 60_000_000, "min"),
        (5, 60_000_000, "min"),
        (10, 60_000_000, "min"),
        (20, 60_000_000, "min"),
        (1, 3_600_000_000, "h"),
        (3, 3_600_000_000, "h"),
        (6, 3_600_000_000, "h"),
        (1, 86_400_000_000, "d"),
        (7, 86_400_000_000, "d"),
        (90, 86_400_000_000, "d"),
    ];
    let fits = |&&(count, unit, _): &&(u64, u64, &str)| scale.span / (count * unit) < 6;
    let &(count, unit, name) = STEPS.iter().find(fits).unwrap_or(&STEPS[STEPS.len() - 1]);
    let base = scale.y(0);
    for number in 0..=(scale.span / (count * unit)).min(6) {
        let x = scale.x(number * count * unit);
        area.draw(&PathElement::new([(x, base), (x, base + 3)], INK))?;
        write(area, &format!("{} {name}", number * count), (x, base + 10), 10, HPos::Center, INK)?;
    }
    Ok(())
}

fn draw_legend(area: &Area<'_>, has_delays: bool) -> Result<(), AnyError> {
    let mut x = LEFT;
    let entries = [
        (ALLOWED, "allowed", true),
        (DELAYED, "delayed", has_delays),
        (DENIED, "denied", true),
        (REMAINING, "remaining", true),
    ];
    for (colour, name, _) in entries.into_iter().filter(|(_, _, shown)| *shown) {
        area.draw(&Rectangle::new([(x, 6), (x + 10, 16)], colour.filled()))?;
        write(area, name, (x + 15, 11), 11, HPos::Left, INK)?;
        x += 85;
    }
    Ok(())
}
