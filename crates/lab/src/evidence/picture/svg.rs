//! Writes SVG elements as text.

use std::fmt::Write as _;

/// Style sheet of pictures, for light and dark mode. Series use the colours of Okabe and Ito, which
/// colour-blind readers can distinguish.
pub(super) const STYLE: &str = "
.pk{font-family:system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif;font-size:12px}
.pk-bg{fill:#ffffff}.pk-ink{fill:#1f2328}.pk-dim{fill:#57606a}
.pk-title{fill:#1f2328;font-size:16px;font-weight:600}
.pk-head{fill:#1f2328;font-size:13px;font-weight:600}
.pk-axis{stroke:#57606a;fill:none}.pk-grid{stroke:#d8dee4;fill:none}
.pk-paper{stroke:#1f2328;fill:none;stroke-width:1.4;stroke-dasharray:6 4}
.pk-event{stroke:#57606a;fill:none;stroke-dasharray:2 3}
.pk-diamond{stroke:#1f2328;fill:none;stroke-width:1.6}
.pk-band{fill:#1f2328;fill-opacity:.08}
.pk-line{fill:none;stroke-width:2;stroke-linejoin:round}
.pk-thin{fill:none;stroke-width:1.4;stroke-dasharray:5 3}
.pk-box{fill-opacity:.3;stroke-width:1.5}.pk-mid{stroke-width:2.5}
.pk-s0{stroke:#0072b2}.pk-f0{fill:#0072b2}.pk-s1{stroke:#d55e00}.pk-f1{fill:#d55e00}
.pk-s2{stroke:#009e73}.pk-f2{fill:#009e73}.pk-s3{stroke:#b8578c}.pk-f3{fill:#b8578c}
.pk-s4{stroke:#b58900}.pk-f4{fill:#b58900}.pk-s5{stroke:#3c9dd0}.pk-f5{fill:#3c9dd0}
.pk-s6{stroke:#7a5195}.pk-f6{fill:#7a5195}.pk-s7{stroke:#6e7781}.pk-f7{fill:#6e7781}
@media (prefers-color-scheme:dark){
.pk-bg{fill:#0d1117}.pk-ink,.pk-title,.pk-head{fill:#e6edf3}.pk-dim{fill:#9aa4ae}
.pk-axis{stroke:#9aa4ae}.pk-grid{stroke:#30363d}.pk-paper,.pk-diamond{stroke:#e6edf3}
.pk-event{stroke:#9aa4ae}.pk-band{fill:#e6edf3;fill-opacity:.12}
.pk-s0{stroke:#58a6ff}.pk-f0{fill:#58a6ff}.pk-s1{stroke:#f0883e}.pk-f1{fill:#f0883e}
.pk-s2{stroke:#3fb984}.pk-f2{fill:#3fb984}.pk-s3{stroke:#e38fc0}.pk-f3{fill:#e38fc0}
.pk-s4{stroke:#e3b341}.pk-f4{fill:#e3b341}.pk-s5{stroke:#79c0ff}.pk-f5{fill:#79c0ff}
.pk-s6{stroke:#bc8cff}.pk-f6{fill:#bc8cff}.pk-s7{stroke:#8b949e}.pk-f7{fill:#8b949e}}
";

/// Number of different colours for series in a picture.
pub(super) const COLOURS: usize = 8;

/// An SVG document as text.
#[derive(Debug, Default)]
pub(super) struct Svg(pub String);

/// Alignment of a text relative to its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// Writes an element. `text` must be valid SVG, because the function does not escape it.
    pub fn element(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{text}");
    }

    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.element(format_args!(
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        ));
    }

    pub fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
        self.element(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{height:.1}\"/>"
        ));
    }

    pub fn circle(&mut self, class: &str, (x, y): (f64, f64), r: f64) {
        self.element(format_args!(r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{r}"/>"#));
    }

    pub fn diamond(&mut self, (x, y): (f64, f64)) {
        let r = 5.5;
        self.element(format_args!(
            "<path class=\"pk-diamond\" \
             d=\"M{:.1} {y:.1}L{x:.1} {:.1}L{:.1} {y:.1}L{x:.1} {:.1}Z\"/>",
            x - r,
            y - r,
            x + r,
            y + r
        ));
    }

    pub fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        if points.is_empty() {
            return;
        }
        let mut d = String::new();
        for (i, (x, y)) in points.iter().enumerate() {
            let _ = write!(d, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' });
        }
        self.element(format_args!(r#"<path class="{class}" d="{d}"/>"#));
    }

    pub fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        self.element(format_args!(
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
        ));
    }

    /// Writes text that is rotated by 90 degrees to the left and centred at (`x`, `y`).
    pub fn upright_text(&mut self, class: &str, (x, y): (f64, f64), text: &str) {
        let text = escaped(text);
        self.element(format_args!(
            "<text class=\"{class}\" transform=\"translate({x:.1} {y:.1}) rotate(-90)\" \
             text-anchor=\"middle\">{text}</text>"
        ));
    }
}

/// Escapes text for an element or attribute of XML or HTML.
#[must_use]
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // XML allows no control characters.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Estimates the width of `text` at 12 px, because no font is available to measure the text.
pub(super) fn width(text: &str) -> f64 {
    let narrow = |c: char| "iljt.,:;'|()[] 1fr".contains(c);
    text.chars().map(|c| if narrow(c) { 4.6 } else { 7.2 }).sum()
}
