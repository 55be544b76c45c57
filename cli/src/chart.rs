//! Charts as SVG, drawn with plotters. Text is left to the viewer's fonts.

use crate::failure::Failure;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::ops::Range;

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// One data series of a panel.
pub(crate) struct Series<'a> {
    /// Text in the legend.
    pub(crate) name: &'a str,
    pub(crate) color: RGBColor,
    pub(crate) style: Style,
    /// The points (x, y), in the order of x.
    pub(crate) points: Vec<(f64, f64)>,
    /// Where the series is interrupted, in order: nothing is drawn from a point before such an x to one at it or after it.
    pub(crate) breaks: Vec<f64>,
}

pub(crate) enum Style {
    /// Filled down to zero.
    Area,
    Line,
    /// A line with a dot on each point.
    Dots,
}

/// An SVG document of a width and height in pixels.
pub(crate) fn svg(size: (u32, u32), draw: impl FnOnce(&Area) -> Drawn) -> Result<String, Failure> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
    let drawn = area.fill(&WHITE).and_then(|()| draw(&area));
    drawn
        .and_then(|()| area.present())
        .map_err(|e| Failure::Internal(format!("cannot draw the chart: {e}")))?;
    drop(area);
    Ok(text)
}

/// A number at an axis, without the noise of its last bits.
fn label(value: &f64) -> String {
    ((value * 1e6).round() / 1e6).to_string()
}

/// The parts of a series between its breaks.
fn pieces<'a>(points: &'a [(f64, f64)], breaks: &'a [f64]) -> impl Iterator<Item = &'a [(f64, f64)]> {
    let piece = move |at: f64| breaks.partition_point(|edge| *edge <= at);
    points.chunk_by(move |a, b| piece(a.0) == piece(b.0))
}

/// Draws series above a common x axis; y starts at zero. Two or more series get a legend.
pub(crate) fn panel(area: &Area, x: Range<f64>, labels: (&str, &str), series: &[Series]) -> Drawn {
    let values = series.iter().flat_map(|s| &s.points).map(|p| p.1);
    // Room for the legend above the highest value.
    let headroom = if series.len() > 1 { 1.35 } else { 1.08 };
    let top = values.fold(f64::MIN_POSITIVE, f64::max) * headroom;
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(24)
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d(x, 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(16)
        .y_labels(6)
        .x_label_formatter(&label)
        .y_label_formatter(&label)
        .x_desc(labels.0)
        .y_desc(labels.1)
        .draw()?;
    for Series {
        name,
        color,
        style,
        points,
        breaks,
    } in series
    {
        for (number, piece) in pieces(points, breaks).enumerate() {
            let points = piece.iter().copied();
            let drawn = match style {
                Style::Area => chart.draw_series(AreaSeries::new(points, 0.0, color))?,
                // A line of one point has no length and would not be seen.
                Style::Line if piece.len() == 1 => {
                    chart.draw_series(LineSeries::new(points, color.filled()).point_size(2))?
                }
                Style::Line => chart.draw_series(LineSeries::new(points, color))?,
                Style::Dots => {
                    chart.draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(2))?
                }
            };
            let swatch = color.filled();
            if number == 0 {
                drawn
                    .label(*name)
                    .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 14, y + 4)], swatch));
            }
        }
    }
    if series.len() > 1 {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE)
            .border_style(BLACK.mix(0.3))
            .draw()?;
    }
    Ok(())
}
