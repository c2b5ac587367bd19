//! Boxes and arrows.

use plotters::element::{PathElement, Polygon, Rectangle};
use plotters::style::Color as _;
use plotters::style::RGBColor;
use plotters::style::text_anchor::HPos;

use tower_ratelimit_simulate::AnyError;
use tower_ratelimit_simulate::chart::{Area, FAINT, INK, write};

/// Draws a box with a name, and a remark below it.
pub(super) fn block(
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
pub(super) fn frame(
    area: &Area<'_>,
    (left, top): (i32, i32),
    (right, bottom): (i32, i32),
    name: &str,
) -> Result<(), AnyError> {
    area.draw(&Rectangle::new([(left, top), (right, bottom)], FAINT))?;
    write(area, name, (left + 8, top + 14), 12, HPos::Left, FAINT)
}

/// Draws lines between points, with a head at the last one.
pub(super) fn arrow(area: &Area<'_>, points: &[(i32, i32)]) -> Result<(), AnyError> {
    area.draw(&PathElement::new(points.to_vec(), INK))?;
    let [.., (from_x, from_y), (x, y)] = *points else { return Ok(()) };
    let (dx, dy) = ((x - from_x).signum(), (y - from_y).signum());
    let (back_x, back_y) = (x - 7 * dx, y - 7 * dy);
    let head = vec![(x, y), (back_x + 4 * dy, back_y + 4 * dx), (back_x - 4 * dy, back_y - 4 * dx)];
    Ok(area.draw(&Polygon::new(head, INK.filled()))?)
}
