//! Draws the pictures of figures as SVG.
//!
//! # Problem
//!
//! People look at a picture more often than they read JSON. People view a picture in an image
//! viewer, on a page in light or dark mode, or on paper.
//!
//! # Approach
//!
//! A [`Picture`] is plain data. A picture has panels, and a panel has two axes and marks such as
//! lines and bars. [`Picture::svg`] draws the picture.
//!
//! The SVG elements use classes of one style sheet, which defines colours for light and for dark
//! mode. A page can contain many pictures, which all follow the reader's choice of light or dark
//! mode.
//!
//! A published value is a dashed line or a hollow diamond in the colour of the text. A published
//! value is never drawn like a measured value.
//!
//! | Mark | Used for |
//! |---|---|
//! | [`Panel::line`], [`Panel::steps`] | values over time; distributions ([`super::stats`]) |
//! | [`Panel::points`] | single measurements |
//! | [`Panel::bars`], [`Panel::stack`] | values side by side; stacked values |
//! | [`Panel::boxes`] | minimum, quartiles and maximum ([`super::stats`]) |
//! | [`Panel::published`], [`Panel::published_points`] | values that the paper prints |
//! | [`Panel::event`], [`Panel::band`] | an event; a range of values |
//!
//! # Departures
//!
//! The lab draws its pictures without an external crate. `plotters` is the best maintained crate
//! with an SVG back end. `plotters` writes colours into the elements, so a picture is unreadable in
//! light or in dark mode. The crate `plotters` also lacks stacked bars, grouped bars and grouped
//! boxes.

mod draw;
mod scale;
mod svg;

use super::series::Series;
use super::stats::count;

pub(crate) use svg::escaped;

/// A picture that consists of panels in one or two columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    pub(super) title: String,
    pub(super) panels: Vec<Panel>,
}

/// Two axes with marks such as lines, bars and points.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    title: String,
    x: Axis,
    y: Axis,
    marks: Vec<Mark>,
}

/// An axis with its label, scale, end values and named positions.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    label: String,
    log: bool,
    from: Option<f64>,
    to: Option<f64>,
    names: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
struct Mark {
    label: String,
    /// Index of the mark's colour. `None` if the mark has the colour of the text.
    colour: Option<usize>,
    shape: Shape,
}

#[derive(Debug, Clone, PartialEq)]
enum Shape {
    Line { points: Vec<(f64, f64)>, steps: bool, thin: bool },
    Points(Vec<(f64, f64)>),
    Bars { points: Vec<(f64, f64)>, stacked: bool },
    Boxes(Vec<(f64, [f64; 5])>),
    Diamonds(Vec<(f64, f64)>),
    Level(f64),
    Upright(f64),
    Band(f64, f64),
}

impl Axis {
    /// Creates an axis with a linear scale. The axis begins at 0 if no value is below 0.
    #[must_use]
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), log: false, from: None, to: None, names: Vec::new() }
    }

    /// Creates a logarithmic axis. A logarithmic axis omits values of 0 and below.
    #[must_use]
    pub fn log(label: impl Into<String>) -> Self {
        Self { log: true, ..Self::linear(label) }
    }

    /// Creates an axis with names at the positions 0, 1, 2 and so on.
    #[must_use]
    pub fn named<N: Into<String>>(
        label: impl Into<String>,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        Self { names: names.into_iter().map(Into::into).collect(), ..Self::linear(label) }
    }

    /// Sets the value at which the axis starts.
    #[must_use]
    pub fn from(mut self, value: f64) -> Self {
        self.from = Some(value);
        self
    }

    /// Sets the value at which the axis ends.
    #[must_use]
    pub fn to(mut self, value: f64) -> Self {
        self.to = Some(value);
        self
    }
}

impl Picture {
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), panels: Vec::new() }
    }

    /// Adds `word` in parentheses to the end of the picture's title.
    #[must_use]
    pub fn noted(mut self, word: &str) -> Self {
        self.title = format!("{} ({word})", self.title);
        self
    }

    #[must_use]
    pub fn panel(mut self, panel: Panel) -> Self {
        self.panels.push(panel);
        self
    }

    /// Returns the picture as SVG for a separate file, with the style sheet.
    #[must_use]
    pub fn svg(&self) -> String {
        draw::picture(self, "p", true)
    }

    /// Returns the picture as SVG for a page that includes [`style`]. The identifier `id` of the
    /// picture must be unique on the HTML page.
    #[must_use]
    pub fn inline_svg(&self, id: &str) -> String {
        draw::picture(self, id, false)
    }
}

/// Returns the style sheet of inline pictures.
#[must_use]
pub fn style() -> &'static str {
    svg::STYLE
}

impl Panel {
    #[must_use]
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Self {
        Self { title: title.into(), x, y, marks: Vec::new() }
    }

    fn mark(mut self, label: impl Into<String>, shape: Shape) -> Self {
        let inked = matches!(
            shape,
            Shape::Diamonds(_) | Shape::Level(_) | Shape::Upright(_) | Shape::Band(..)
        );
        let coloured = self.marks.iter().filter(|m| m.colour.is_some()).count();
        let colour = (!inked).then_some(coloured);
        self.marks.push(Mark { label: label.into(), colour, shape });
        self
    }

    /// Draws a line through the points. The line has a gap where a value is NaN.
    #[must_use]
    pub fn line(
        self,
        label: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        let points = points.into_iter().collect();
        self.mark(label, Shape::Line { points, steps: false, thin: false })
    }

    /// Draws a series as a line.
    #[must_use]
    pub fn series(self, label: impl Into<String>, series: &Series) -> Self {
        self.line(label, points(series))
    }

    /// Draws steps. The line keeps the value of each point until the next point.
    #[must_use]
    pub fn steps(
        self,
        label: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        let points = points.into_iter().collect();
        self.mark(label, Shape::Line { points, steps: true, thin: false })
    }

    /// Draws a thin dashed line through the points in the next colour, for secondary data.
    #[must_use]
    pub fn thin_line(
        self,
        label: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        let points = points.into_iter().collect();
        self.mark(label, Shape::Line { points, steps: false, thin: true })
    }

    #[must_use]
    pub fn points(
        self,
        label: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        self.mark(label, Shape::Points(points.into_iter().collect()))
    }

    /// Draws bars. If several calls of `bars` draw bars at the same position, the bars are side by
    /// side.
    #[must_use]
    pub fn bars(
        self,
        label: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        self.mark(label, Shape::Bars { points: points.into_iter().collect(), stacked: false })
    }

    /// Draws stacked bars. Each call of `stack` draws its bars on top of the bars of the previous
    /// call.
    #[must_use]
    pub fn stack(
        self,
        label: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        self.mark(label, Shape::Bars { points: points.into_iter().collect(), stacked: true })
    }

    /// Draws boxes from the lower to the upper quartile, with a line at the median and whiskers to
    /// the minimum and the maximum. If several calls of `boxes` draw boxes at the same position,
    /// the boxes are side by side.
    #[must_use]
    pub fn boxes(
        self,
        label: impl Into<String>,
        boxes: impl IntoIterator<Item = (f64, [f64; 5])>,
    ) -> Self {
        self.mark(label, Shape::Boxes(boxes.into_iter().collect()))
    }

    /// Draws a published value as a horizontal line across the whole panel.
    #[must_use]
    pub fn published(self, label: impl Into<String>, value: f64) -> Self {
        self.mark(label, Shape::Level(value))
    }

    /// Draws published values as diamonds.
    #[must_use]
    pub fn published_points(
        self,
        label: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        self.mark(label, Shape::Diamonds(points.into_iter().collect()))
    }

    /// Marks an event with a vertical line at `x`.
    #[must_use]
    pub fn event(self, label: impl Into<String>, x: f64) -> Self {
        self.mark(label, Shape::Upright(x))
    }

    /// Draws the range of values that a claim allows.
    #[must_use]
    pub fn band(self, label: impl Into<String>, low: f64, high: f64) -> Self {
        self.mark(label, Shape::Band(low, high))
    }

    /// Changes the colour of the mark that was added last to the colour with index `colour`.
    #[must_use]
    pub fn coloured(mut self, colour: usize) -> Self {
        if let Some(mark) = self.marks.last_mut() {
            mark.colour = Some(colour);
        }
        self
    }
}

/// Returns the points of a series as pairs (x, y).
pub fn points(series: &Series) -> impl Iterator<Item = (f64, f64)> + '_ {
    series.x.iter().copied().zip(series.y.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes() -> (Axis, Axis) {
        (Axis::linear("time, s"), Axis::linear("bandwidth, Gbit/s"))
    }

    #[test]
    fn a_picture_names_its_axes_marks_and_what_was_published() {
        let (x, y) = axes();
        let panel = Panel::new("(a) <bps>", x, y)
            .line("VM1 & VM2", [(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0)])
            .published("paper", 4.0)
            .event("64 B", 1.5);
        let svg = Picture::new("A figure").panel(panel).svg();
        for text in ["time, s", "bandwidth, Gbit/s", "(a) &lt;bps&gt;", "VM1 &amp; VM2", "paper"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert!(svg.contains("<style>") && svg.contains("prefers-color-scheme"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn every_kind_of_mark_is_drawn_also_of_nothing() {
        let (x, y) = axes();
        let full = Panel::new("t", Axis::named("VM", ["1", "2"]), Axis::log("us"))
            .bars("a", [(0.0, 1.0), (1.0, 10.0)])
            .bars("b", [(0.0, 2.0)])
            .stack("c", [(0.0, 2.0)])
            .stack("d", [(0.0, 2.0)])
            .boxes("e", [(1.0, [1.0, 2.0, 3.0, 4.0, 100.0])])
            .points("f", [(0.0, 5.0)])
            .published_points("g", [(0.0, 5.0)])
            .band("h", 1.0, 2.0)
            .steps("i", [(0.0, 1.0), (1.0, 2.0)]);
        let empty = Panel::new("nothing", x, y).line("l", []).boxes("b", [(0.0, [f64::NAN; 5])]);
        let svg = Picture::new("All").panel(full).panel(empty).inline_svg("x1");
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<style>"));
        assert!(svg.contains("x1-"));
    }
}
