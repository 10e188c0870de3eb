//! Aligned text tables and numbers with units, for people.

use std::fmt::Write as _;

/// A text table. Each column is as wide as its widest cell, with two spaces between columns.
#[derive(Clone, Debug)]
pub struct Table {
    /// Names of the columns, and whether a column is aligned to the right.
    columns: Vec<(String, bool)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with columns whose names are separated by `|`. A column is aligned to the
    /// right if `>` precedes its name.
    #[must_use]
    pub fn new(columns: &str) -> Self {
        let column = |name: &str| match name.strip_prefix('>') {
            Some(name) => (name.to_owned(), true),
            None => (name.to_owned(), false),
        };
        Self { columns: columns.split('|').map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// Panics if the row does not have one cell for each column.
    pub fn row<I: IntoIterator<Item = String>>(&mut self, cells: I) {
        let row: Vec<String> = cells.into_iter().collect();
        assert_eq!(row.len(), self.columns.len(), "one cell a column");
        self.rows.push(row.into_iter().map(|cell| printable(&cell)).collect());
    }

    /// Returns the table as text, or `none` if the table has no rows.
    #[must_use]
    pub fn render_or(&self, none: &str) -> String {
        if self.rows.is_empty() { none.to_owned() } else { self.render() }
    }

    /// Returns the table as text, with one line per row and no space at a line's end.
    #[must_use]
    pub fn render(&self) -> String {
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| row[at].chars().count());
            cells.max().unwrap_or(0).max(self.columns[at].0.len())
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let mut text = String::new();
        for row in std::iter::once(&heading).chain(&self.rows) {
            let mut line = String::new();
            for (at, cell) in row.iter().enumerate() {
                let width = widths[at];
                // Writing to a String cannot fail.
                let _ = if self.columns[at].1 {
                    write!(line, "{cell:>width$}  ")
                } else {
                    write!(line, "{cell:<width$}  ")
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Replaces control characters, because names and error texts must not control the reader's
/// terminal.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Returns the text, or a dash for an empty text.
#[must_use]
pub fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

/// Formats a count with thousands separators, such as `1,234,567`.
#[must_use]
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a count and its noun, such as `1 port` or `1,200 addresses`.
#[must_use]
pub fn counted(value: u64, noun: &str) -> String {
    let ending = match (value, noun.ends_with(['s', 'h'])) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{} {noun}{ending}", count(value))
}

/// Formats the length of a list and a noun, like [`counted`].
#[must_use]
pub fn counted_items(items: usize, noun: &str) -> String {
    counted(u64::try_from(items).unwrap_or(u64::MAX), noun)
}

/// Formats a number with a decimal prefix and three significant digits, such as `12.3 M`.
fn prefixed(value: f64, unit: &str) -> String {
    const PREFIXES: [&str; 5] = ["", "k", "M", "G", "T"];
    let mut value = value;
    let mut at = 0;
    while value >= 999.5 && at + 1 < PREFIXES.len() {
        value /= 1000.0;
        at += 1;
    }
    let digits = match value {
        value if at == 0 && value.fract() == 0.0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}{unit}", PREFIXES[at])
}

/// Formats a rate in frames per second, such as `1.49 Mpps`.
#[must_use]
pub fn frames_per_second(value: f64) -> String {
    prefixed(value, "pps")
}

/// Formats a rate in bits per second, such as `9.87 Gbit/s`.
#[must_use]
pub fn bits_per_second(value: f64) -> String {
    prefixed(value, "bit/s")
}

/// Formats a rate in cycles per second without the unit, such as `200 M`.
#[must_use]
pub fn cycles_per_second(value: u64) -> String {
    prefixed(to_f64(value), "").trim_end().to_owned()
}

/// Formats a rate in cycles per second, such as `201 Mcycles/s`.
#[must_use]
pub fn cycle_rate(value: f64) -> String {
    prefixed(value, "cycles/s")
}

/// Formats a size in bytes with a decimal prefix, such as `1.50 GB`.
#[must_use]
pub fn bytes(value: u64) -> String {
    prefixed(to_f64(value), "B")
}

/// Formats a share from 0 to 1 as a percentage, such as `12.3 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    // The sum with zero removes the sign of a negative share that rounds to 0.
    format!("{:.1} %", (share * 1_000.0).round() / 10.0 + 0.0)
}

/// Formats a number of seconds in its two largest units, such as `3d 4h`, `5m 12s` or `42s`.
#[must_use]
pub fn seconds(value: u64) -> String {
    let (days, hours, minutes) = (value / 86_400, value / 3_600 % 24, value / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{value}s"),
        (0, 0, _) => format!("{minutes}m {}s", value % 60),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// Converts an integer to a floating-point number, for rates and shares. A number above 2^53 loses
/// its last digits.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
#[must_use]
pub fn to_f64(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_lines_have_no_tail() {
        let mut table = Table::new("NAME|>RX|");
        table.row(["vm1".into(), "7".into(), String::new()]);
        table.row(["uplink0".into(), "1,234".into(), "x".into()]);
        assert_eq!(
            table.render(),
            "NAME        RX\n\
             vm1          7\n\
             uplink0  1,234  x\n"
        );
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let mut table = Table::new("NAME");
        table.row(["a\u{1b}[2Jb\n".into()]);
        assert_eq!(table.render(), "NAME\na\u{fffd}[2Jb\u{fffd}\n");
    }

    #[test]
    fn numbers_carry_units() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!((counted(1, "port"), counted(0, "port")), ("1 port".into(), "0 ports".into()));
        assert_eq!(counted_items(1_200, "address"), "1,200 addresses");
        assert_eq!(counted_items(2, "switch"), "2 switches");
        assert_eq!(frames_per_second(0.0), "0 pps");
        assert_eq!(frames_per_second(1_488_095.0), "1.49 Mpps");
        assert_eq!(bits_per_second(9_999_999_999.0), "10.00 Gbit/s".replace("10.00", "10.0"));
        assert_eq!(bits_per_second(999.6), "1.00 kbit/s");
        assert_eq!(
            (cycles_per_second(2_000_000_000), cycles_per_second(0)),
            ("2.00 G".into(), "0".into())
        );
        assert_eq!(bytes(1500), "1.50 kB");
        assert_eq!(bytes(7), "7 B");
        assert_eq!((percent(0.1234), percent(-0.0001)), ("12.3 %".into(), "0.0 %".into()));
        assert_eq!(seconds(42), "42s");
        assert_eq!(seconds(312), "5m 12s");
        assert_eq!(seconds(7_500), "2h 5m");
        assert_eq!(seconds(273_600), "3d 4h");
    }
}
