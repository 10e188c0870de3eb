//! Pictures of figures, as SVG.
//!
//! **Problem.** A figure is looked at more often than its JSON is read, in a terminal's image
//! viewer, on a page in light or dark, on paper. **Rule.** A [`Picture`] is plain data, panels of
//! marks over two axes; [`Picture::svg`] draws it. Colours are classes of one style sheet with a
//! light and a dark half, so that a page may hold many pictures and follow its reader. What was
//! published is drawn in the ink's own colour and dashed, or as hollow diamonds: never like
//! something that was measured.
//!
//! **Why not a crate.** `plotters`, the best kept one with an SVG back end, writes each colour into
//! each element, which is unreadable in one of the two halves, and has no stacked or grouped bars
//! and boxes that share an axis; what is needed is these few hundred lines.
//!
//! | Mark | For |
//! |---|---|
//! | [`Panel::line`], [`Panel::steps`] | something over time; distributions ([`super::stats`]) |
//! | [`Panel::points`] | single measurements |
//! | [`Panel::bars`], [`Panel::stack`] | things side by side; parts of a whole |
//! | [`Panel::boxes`] | minimum, quartiles and maximum ([`super::stats`]) |
//! | [`Panel::published`], [`Panel::published_points`] | what the paper prints |
//! | [`Panel::event`], [`Panel::band`] | a moment; a range of values |

mod draw;
mod scale;
mod svg;

use super::series::Series;
use super::stats::count;

pub(crate) use svg::escaped;

/// A picture: panels in one or two columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    pub(super) title: String,
    pub(super) panels: Vec<Panel>,
}

/// Marks over two axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    title: String,
    x: Axis,
    y: Axis,
    marks: Vec<Mark>,
}

/// An axis: its label with the unit, and how values lie on it.
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
    /// Number of its colour; `None`: the ink's.
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
    /// Values lie as they are; the axis begins at 0 if none lies below.
    #[must_use]
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), log: false, from: None, to: None, names: Vec::new() }
    }

    /// Equal ratios are equal distances; values that are not above 0 are left out.
    #[must_use]
    pub fn log(label: impl Into<String>) -> Self {
        Self { log: true, ..Self::linear(label) }
    }

    /// Things with names, at 0, 1, 2 and so on.
    #[must_use]
    pub fn named<N: Into<String>>(
        label: impl Into<String>,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        Self { names: names.into_iter().map(Into::into).collect(), ..Self::linear(label) }
    }

    /// It begins here.
    #[must_use]
    pub fn from(mut self, value: f64) -> Self {
        self.from = Some(value);
        self
    }

    /// It ends here.
    #[must_use]
    pub fn to(mut self, value: f64) -> Self {
        self.to = Some(value);
        self
    }
}

impl Picture {
    /// A picture without panels yet.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), panels: Vec::new() }
    }

    /// The same with a word behind the title.
    #[must_use]
    pub fn noted(mut self, word: &str) -> Self {
        self.title = format!("{} ({word})", self.title);
        self
    }

    /// Adds a panel.
    #[must_use]
    pub fn panel(mut self, panel: Panel) -> Self {
        self.panels.push(panel);
        self
    }

    /// The SVG as a file of its own, with its style sheet.
    #[must_use]
    pub fn svg(&self) -> String {
        draw::picture(self, "p", true)
    }

    /// The SVG as a part of a page that has [`style`]; `id` is unique on the page.
    #[must_use]
    pub fn inline_svg(&self, id: &str) -> String {
        draw::picture(self, id, false)
    }
}

/// The style sheet of inline pictures.
#[must_use]
pub fn style() -> &'static str {
    svg::STYLE
}

impl Panel {
    /// A panel without marks yet.
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

    /// Values joined by a line; a gap where one is no number.
    #[must_use]
    pub fn line(
        self,
        label: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        let points = points.into_iter().collect();
        self.mark(label, Shape::Line { points, steps: false, thin: false })
    }

    /// A series as a line.
    #[must_use]
    pub fn series(self, label: impl Into<String>, series: &Series) -> Self {
        self.line(label, points(series))
    }

    /// Values that stay until the next.
    #[must_use]
    pub fn steps(
        self,
        label: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        let points = points.into_iter().collect();
        self.mark(label, Shape::Line { points, steps: true, thin: false })
    }

    /// Values joined by a thin dashed line: what is beside the point, in the colour of its turn.
    #[must_use]
    pub fn thin_line(
        self,
        label: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        let points = points.into_iter().collect();
        self.mark(label, Shape::Line { points, steps: false, thin: true })
    }

    /// Values by themselves.
    #[must_use]
    pub fn points(
        self,
        label: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        self.mark(label, Shape::Points(points.into_iter().collect()))
    }

    /// Bars; those of several calls at one place stand side by side.
    #[must_use]
    pub fn bars(
        self,
        label: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        self.mark(label, Shape::Bars { points: points.into_iter().collect(), stacked: false })
    }

    /// Bars of which each call's stand on those of the call before.
    #[must_use]
    pub fn stack(
        self,
        label: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        self.mark(label, Shape::Bars { points: points.into_iter().collect(), stacked: true })
    }

    /// Boxes from the lower to the upper quartile with the median in them, and whiskers to the
    /// ends; those of several calls at one place stand side by side.
    #[must_use]
    pub fn boxes(
        self,
        label: impl Into<String>,
        boxes: impl IntoIterator<Item = (f64, [f64; 5])>,
    ) -> Self {
        self.mark(label, Shape::Boxes(boxes.into_iter().collect()))
    }

    /// A published value, as a level through the whole panel.
    #[must_use]
    pub fn published(self, label: impl Into<String>, value: f64) -> Self {
        self.mark(label, Shape::Level(value))
    }

    /// Published values.
    #[must_use]
    pub fn published_points(
        self,
        label: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        self.mark(label, Shape::Diamonds(points.into_iter().collect()))
    }

    /// Something that happens at `x`.
    #[must_use]
    pub fn event(self, label: impl Into<String>, x: f64) -> Self {
        self.mark(label, Shape::Upright(x))
    }

    /// The range of values that a claim allows.
    #[must_use]
    pub fn band(self, label: impl Into<String>, low: f64, high: f64) -> Self {
        self.mark(label, Shape::Band(low, high))
    }

    /// Gives the last mark the colour of number `colour` instead of that of its turn.
    #[must_use]
    pub fn coloured(mut self, colour: usize) -> Self {
        if let Some(mark) = self.marks.last_mut() {
            mark.colour = Some(colour);
        }
        self
    }
}

/// The points of a series.
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
