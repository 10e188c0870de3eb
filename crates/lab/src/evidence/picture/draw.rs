//! Draws a picture: its layout, and its marks (lines, bars, points and so on).

use super::scale::Scale;
use super::svg::{Anchor, COLOURS, STYLE, Svg, escaped, width};
use super::{Mark, Panel, Picture, Shape, count};

const PANEL: (f64, f64) = (520.0, 330.0);
const GAP: f64 = 16.0;
const TITLE: f64 = 40.0;
const HEAD: f64 = 22.0;
const LEGEND_ROW: f64 = 18.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 14.0;
const BELOW: f64 = 46.0;
const BAR_MAX: f64 = 56.0;

/// Returns the whole picture as SVG text. If `alone` is true, the SVG includes its style sheet and
/// a background.
pub(super) fn picture(picture: &Picture, id: &str, alone: bool) -> String {
    let columns = picture.panels.len().clamp(1, 2);
    let rows = picture.panels.len().div_ceil(columns).max(1);
    let legends = picture.panels.iter().map(|p| legend(p).1).max().unwrap_or(0);
    let height = PANEL.1 + LEGEND_ROW * count(legends);
    let whole = (GAP + count(columns) * (PANEL.0 + GAP), TITLE + count(rows) * (height + GAP));
    let mut svg = Svg::default();
    let (w, h) = whole;
    let title = escaped(&picture.title);
    svg.element(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"pk\" viewBox=\"0 0 {w:.0} {h:.0}\" \
         width=\"{w:.0}\" height=\"{h:.0}\" role=\"img\"><title>{title}</title>"
    ));
    if alone {
        svg.element(format_args!("<style>{STYLE}</style>"));
        svg.rect("pk-bg", (0.0, 0.0), whole);
    }
    svg.text("pk-title", (GAP, 26.0), Anchor::Start, &picture.title);
    for (i, panel) in picture.panels.iter().enumerate() {
        let (column, row) = (count(i % columns), count(i / columns));
        let at = (GAP + column * (PANEL.0 + GAP), TITLE + row * (height + GAP));
        Frame::new(panel, at, height, legends).draw(&mut svg, &format!("{id}-{i}"));
    }
    svg.element(format_args!("</svg>"));
    svg.0
}

/// Returns the positions of the legend's entries, one for each mark, and the number of rows. The
/// legend position of a mark consists of a row and an offset from the left in SVG units. The
/// position is `None` if the legend has no entry for the mark.
fn legend(panel: &Panel) -> (Vec<Option<(f64, usize)>>, usize) {
    let (mut x, mut row, mut any) = (0.0, 0, false);
    let room = PANEL.0 - LEFT - RIGHT;
    let places = panel.marks.iter().map(|mark| {
        if mark.label.is_empty() || matches!(mark.shape, Shape::Upright(_)) {
            return None;
        }
        let wide = 26.0 + width(&mark.label) + 14.0;
        if x > 0.0 && x + wide > room {
            (x, row) = (0.0, row + 1);
        }
        let place = (x, row);
        x += wide;
        any = true;
        Some(place)
    });
    let places = places.collect();
    (places, if any { row + 1 } else { 0 })
}

/// A panel with the scales of its axes and its place in the picture.
struct Frame<'a> {
    panel: &'a Panel,
    at: (f64, f64),
    x: Scale,
    y: Scale,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl<'a> Frame<'a> {
    fn new(panel: &'a Panel, at: (f64, f64), height: f64, legends: usize) -> Self {
        let (left, right) = (at.0 + LEFT, at.0 + PANEL.0 - RIGHT);
        let top = at.1 + HEAD + LEGEND_ROW * count(legends) + 8.0;
        let bottom = at.1 + height - BELOW;
        let x = Scale::new(&panel.x, xs(panel).into_iter(), (left, right));
        let y = Scale::new(&panel.y, ys(panel).into_iter(), (bottom, top));
        Self { panel, at, x, y, left, right, top, bottom }
    }

    fn draw(&self, svg: &mut Svg, id: &str) {
        self.axes(svg);
        self.legend(svg);
        let (size, place) =
            ((self.right - self.left, self.bottom - self.top), (self.left, self.top));
        svg.element(format_args!(
            "<clipPath id=\"{id}\"><rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>\
             </clipPath><g clip-path=\"url(#{id})\">",
            place.0, place.1, size.0, size.1
        ));
        for mark in &self.panel.marks {
            self.under(svg, mark);
        }
        self.bars(svg);
        self.boxes(svg);
        for mark in &self.panel.marks {
            self.over(svg, mark);
        }
        svg.element(format_args!("</g>"));
        svg.line("pk-axis", (self.left, self.bottom), (self.right, self.bottom));
        svg.line("pk-axis", (self.left, self.top), (self.left, self.bottom));
        self.events(svg);
    }

    fn axes(&self, svg: &mut Svg) {
        svg.text("pk-head", (self.at.0 + 4.0, self.at.1 + 14.0), Anchor::Start, &self.panel.title);
        for (value, text) in self.y.ticks(&self.panel.y) {
            let Some(y) = self.y.place(value) else { continue };
            svg.line("pk-grid", (self.left, y), (self.right, y));
            svg.text("pk-dim", (self.left - 7.0, y + 4.0), Anchor::End, &text);
        }
        let ticks = self.x.ticks(&self.panel.x);
        let room = (self.right - self.left) / count(ticks.len().max(1));
        let crowded = ticks.iter().any(|(_, text)| width(text) > room - 4.0);
        for (i, (value, text)) in ticks.iter().enumerate() {
            let Some(x) = self.x.place(*value) else { continue };
            if self.panel.x.names.is_empty() {
                svg.line("pk-grid", (x, self.top), (x, self.bottom));
            }
            // Names that do not fit beside each other alternate between two rows.
            let lower = if crowded && i % 2 == 1 { 12.0 } else { 0.0 };
            svg.text("pk-dim", (x, self.bottom + 16.0 + lower), Anchor::Middle, text);
        }
        let middle = f64::midpoint(self.left, self.right);
        let lower = if crowded { 4.0 } else { 0.0 };
        let label = (middle, self.bottom + 36.0 + lower);
        svg.text("pk-ink", label, Anchor::Middle, &self.panel.x.label);
        let middle = f64::midpoint(self.top, self.bottom);
        svg.upright_text("pk-ink", (self.at.0 + 14.0, middle), &self.panel.y.label);
    }

    fn legend(&self, svg: &mut Svg) {
        let (places, _) = legend(self.panel);
        for (mark, place) in self.panel.marks.iter().zip(places) {
            let Some((x, row)) = place else { continue };
            let at = (self.left + x, self.at.1 + HEAD + 8.0 + LEGEND_ROW * count(row));
            let middle = (at.0 + 10.0, at.1);
            match &mark.shape {
                Shape::Line { thin, .. } => {
                    svg.line(&line_class(mark, *thin), (at.0, at.1), (at.0 + 20.0, at.1));
                }
                Shape::Points(_) => svg.circle(&fill(mark), middle, 4.0),
                Shape::Bars { .. } | Shape::Boxes(_) => {
                    svg.rect(&fill(mark), (at.0 + 3.0, at.1 - 6.0), (14.0, 12.0));
                }
                Shape::Diamonds(_) => svg.diamond(middle),
                Shape::Level(_) => svg.line("pk-paper", (at.0, at.1), (at.0 + 20.0, at.1)),
                Shape::Band(..) => svg.rect("pk-band", (at.0, at.1 - 6.0), (20.0, 12.0)),
                Shape::Upright(_) => {}
            }
            svg.text("pk-ink", (at.0 + 26.0, at.1 + 4.0), Anchor::Start, &mark.label);
        }
    }

    /// Draws the mark if the mark is a band, and does nothing otherwise. Bands are drawn first,
    /// because a band must be behind all other marks.
    fn under(&self, svg: &mut Svg, mark: &Mark) {
        let Shape::Band(low, high) = mark.shape else { return };
        let edge = |value: f64, end: f64| self.y.place(value).unwrap_or(end);
        let (below, above) = (edge(low, self.bottom), edge(high, self.top));
        let size = (self.right - self.left, (below - above).max(1.0));
        svg.rect("pk-band", (self.left, above), size);
    }

    fn over(&self, svg: &mut Svg, mark: &Mark) {
        match &mark.shape {
            Shape::Line { points, steps, thin } => {
                self.line(svg, &line_class(mark, *thin), points, *steps);
            }
            Shape::Points(points) => {
                for at in points.iter().filter_map(|p| self.place(*p)) {
                    svg.circle(&fill(mark), at, 3.5);
                }
            }
            Shape::Diamonds(points) => {
                points.iter().filter_map(|p| self.place(*p)).for_each(|at| svg.diamond(at));
            }
            Shape::Level(value) => {
                if let Some(y) = self.y.place(*value) {
                    svg.line("pk-paper", (self.left, y), (self.right, y));
                }
            }
            Shape::Bars { .. } | Shape::Boxes(_) | Shape::Band(..) | Shape::Upright(_) => {}
        }
    }

    fn events(&self, svg: &mut Svg) {
        let mut row = 0.0;
        for mark in &self.panel.marks {
            let Shape::Upright(value) = mark.shape else { continue };
            let Some(x) = self.x.place(value) else { continue };
            svg.line("pk-event", (x, self.top), (x, self.bottom));
            // A label is to the right of its line, or to the left if it does not fit. Each label is
            // one row below the previous label.
            let late = x + width(&mark.label) + 6.0 > self.right;
            let (x, anchor) = if late { (x - 4.0, Anchor::End) } else { (x + 4.0, Anchor::Start) };
            svg.text("pk-dim", (x, self.top + 12.0 + row), anchor, &mark.label);
            row = (row + 13.0) % 39.0;
        }
    }

    fn place(&self, (x, y): (f64, f64)) -> Option<(f64, f64)> {
        Some((self.x.place(x)?, self.y.place(y)?))
    }

    fn line(&self, svg: &mut Svg, class: &str, points: &[(f64, f64)], steps: bool) {
        let mut piece: Vec<(f64, f64)> = Vec::new();
        for point in points {
            match self.place(*point) {
                Some(at) => {
                    if let (true, Some(last)) = (steps, piece.last().copied()) {
                        piece.push((at.0, last.1));
                    }
                    piece.push(at);
                }
                // A missing value leaves a gap in the line.
                None => svg.path(class, &std::mem::take(&mut piece)),
            }
        }
        svg.path(class, &piece);
    }

    /// Returns the width of one bar or box in SVG units, if each position has `groups` bars or
    /// boxes side by side.
    fn slot(&self, places: impl Iterator<Item = f64>, groups: usize) -> f64 {
        let mut at: Vec<f64> = places.filter_map(|x| self.x.place(x)).collect();
        at.sort_by(f64::total_cmp);
        let gaps = at.windows(2).map(|w| w[1] - w[0]).filter(|gap| *gap > 0.5);
        let nearest = gaps.fold(self.x.unit().max(40.0), f64::min);
        (0.78 * nearest / count(groups.max(1))).clamp(2.0, BAR_MAX)
    }

    fn bars(&self, svg: &mut Svg) {
        let marks = self.panel.marks.iter().filter_map(|m| match &m.shape {
            Shape::Bars { points, stacked } => Some((m, points, *stacked)),
            _ => None,
        });
        let marks: Vec<_> = marks.collect();
        let alone = marks.iter().filter(|m| !m.2).count();
        let groups = alone + usize::from(alone < marks.len());
        let slot = self.slot(marks.iter().flat_map(|m| m.1.iter().map(|p| p.0)), groups);
        let mut below: Vec<(f64, f64)> = Vec::new();
        let mut next = 0;
        for (mark, points, stacked) in marks {
            let group = if stacked { groups - 1 } else { next };
            next += usize::from(!stacked);
            for &(x, value) in points {
                let from = if stacked { stack_on(&mut below, x, value) } else { None };
                let base = from.unwrap_or(self.y.base()).max(self.y.base());
                let Some((middle, y)) = self.place((x, from.unwrap_or(0.0) + value)) else {
                    continue;
                };
                let Some(base) = self.y.place(base) else { continue };
                let left = middle + slot * (count(group) - count(groups) / 2.0);
                let (top, tall) = (y.min(base), (y - base).abs());
                svg.rect(&fill(mark), (left + 0.5, top), ((slot - 1.0).max(1.0), tall));
            }
        }
    }

    fn boxes(&self, svg: &mut Svg) {
        let marks = self.panel.marks.iter().filter_map(|m| match &m.shape {
            Shape::Boxes(boxes) => Some((m, boxes)),
            _ => None,
        });
        let marks: Vec<_> = marks.collect();
        let slot = self.slot(marks.iter().flat_map(|m| m.1.iter().map(|b| b.0)), marks.len());
        for (group, (mark, boxes)) in marks.iter().enumerate() {
            for (x, numbers) in boxes.iter() {
                let at = numbers.map(|n| self.y.place(n));
                let (Some(x), [Some(low), Some(q1), Some(middle), Some(q3), Some(high)]) =
                    (self.x.place(*x), at)
                else {
                    continue;
                };
                let left = x + slot * (count(group) - count(marks.len()) / 2.0) + 1.0;
                let (wide, centre) = ((slot - 2.0).max(2.0), left + (slot - 2.0).max(2.0) / 2.0);
                let stroke = stroke(mark);
                svg.line(&format!("pk-box {stroke}"), (centre, low), (centre, q1));
                svg.line(&format!("pk-box {stroke}"), (centre, q3), (centre, high));
                for end in [low, high] {
                    let (from, to) = (left + wide * 0.25, left + wide * 0.75);
                    svg.line(&format!("pk-box {stroke}"), (from, end), (to, end));
                }
                let class = format!("pk-box {stroke} {}", fill(mark));
                svg.rect(&class, (left, q3), (wide, (q1 - q3).max(1.0)));
                svg.line(&format!("pk-mid {stroke}"), (left, middle), (left + wide, middle));
            }
        }
    }
}

/// Adds `value` to the stack of bars at `x`. Returns the height of the bars that are already at
/// `x`, or `None` if there are none.
fn stack_on(below: &mut Vec<(f64, f64)>, x: f64, value: f64) -> Option<f64> {
    let value = if value.is_finite() { value } else { 0.0 };
    match below.iter_mut().find(|b| (b.0 - x).abs() < 1e-9) {
        Some(found) => {
            let from = found.1;
            found.1 += value;
            Some(from)
        }
        None => {
            below.push((x, value));
            None
        }
    }
}

fn fill(mark: &Mark) -> String {
    mark.colour.map_or_else(|| "pk-ink".to_owned(), |c| format!("pk-f{}", c % COLOURS))
}

fn stroke(mark: &Mark) -> String {
    mark.colour.map_or_else(|| "pk-axis".to_owned(), |c| format!("pk-s{}", c % COLOURS))
}

fn line_class(mark: &Mark, thin: bool) -> String {
    format!("{} {}", if thin { "pk-thin" } else { "pk-line" }, stroke(mark))
}

fn xs(panel: &Panel) -> Vec<f64> {
    let mut all = Vec::new();
    for mark in &panel.marks {
        match &mark.shape {
            Shape::Line { points, .. }
            | Shape::Points(points)
            | Shape::Bars { points, .. }
            | Shape::Diamonds(points) => all.extend(points.iter().map(|p| p.0)),
            Shape::Boxes(boxes) => all.extend(boxes.iter().map(|b| b.0)),
            Shape::Upright(x) => all.push(*x),
            Shape::Level(_) | Shape::Band(..) => {}
        }
    }
    all
}

fn ys(panel: &Panel) -> Vec<f64> {
    let mut all = Vec::new();
    let mut below = Vec::new();
    for mark in &panel.marks {
        match &mark.shape {
            Shape::Bars { points, stacked: true } => {
                for &(x, value) in points {
                    all.push(stack_on(&mut below, x, value).unwrap_or(0.0) + value);
                }
            }
            Shape::Line { points, .. }
            | Shape::Points(points)
            | Shape::Bars { points, .. }
            | Shape::Diamonds(points) => all.extend(points.iter().map(|p| p.1)),
            Shape::Boxes(boxes) => all.extend(boxes.iter().flat_map(|b| b.1)),
            Shape::Level(value) => all.push(*value),
            Shape::Band(low, high) => all.extend([*low, *high]),
            Shape::Upright(_) => {}
        }
    }
    all
}
