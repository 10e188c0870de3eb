//! Converts values to positions on an axis, and computes the axis's ticks.

use super::{Axis, count};

/// Converts values to positions on an axis with known end values. `at` has the positions of the
/// axis's two ends in SVG units.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    log: bool,
    from: f64,
    to: f64,
    at: (f64, f64),
}

/// Value and label of a tick on an axis.
pub(super) type Tick = (f64, String);

impl Scale {
    /// Creates a scale of `axis` that covers all `values`. The scale ignores NaN values.
    pub fn new(axis: &Axis, values: impl Iterator<Item = f64>, at: (f64, f64)) -> Self {
        let usable = |v: &f64| v.is_finite() && (!axis.log || *v > 0.0);
        let (mut low, mut high) = values
            .filter(usable)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            (low, high) = if axis.log { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        if !axis.names.is_empty() {
            (low, high) = (-0.5, count(axis.names.len()) - 0.5);
        } else if axis.log {
            low = 10_f64.powf(low.log10().floor());
            high = 10_f64.powf((high * 0.9999).log10().ceil());
        } else {
            low = low.min(0.0);
            // The axis ends at the next half step above the values.
            let step = nice_step(high - low) / 2.0;
            high = (high / step * 0.999).ceil() * step;
            if low < 0.0 {
                low = (low / step * 0.999).floor() * step;
            }
        }
        let from = axis.from.unwrap_or(low);
        let mut to = axis.to.unwrap_or(high);
        if to <= from || !(to - from).is_finite() {
            to = if axis.log { from * 10.0 } else { from + 1.0 };
        }
        Self { log: axis.log, from, to, at }
    }

    /// Returns the position of `value` on the axis, in SVG units. Returns `None` if `value` has no
    /// position or is far outside the axis.
    pub fn place(&self, value: f64) -> Option<f64> {
        let share = if self.log {
            (value.ln() - self.from.ln()) / (self.to.ln() - self.from.ln())
        } else {
            (value - self.from) / (self.to - self.from)
        };
        let place = self.at.0 + share * (self.at.1 - self.at.0);
        // Values far outside are clipped anyway. Without this check they would become numbers with
        // many digits.
        (place.is_finite() && (-20.0..=20.0).contains(&share)).then_some(place)
    }

    /// Returns the value on the axis at which bars begin. Bars begin at 0, or at the end of the
    /// axis that is nearest to 0.
    pub fn base(&self) -> f64 {
        if self.log { self.from } else { 0.0_f64.clamp(self.from, self.to) }
    }

    /// Returns the distance in SVG units between two values that differ by 1. On a logarithmic
    /// axis, the distance between two values that differ by 1 is not constant, so the result has no
    /// meaning.
    pub fn unit(&self) -> f64 {
        ((self.at.1 - self.at.0) / (self.to - self.from)).abs()
    }

    pub fn ticks(&self, axis: &Axis) -> Vec<Tick> {
        if !axis.names.is_empty() {
            return axis.names.iter().enumerate().map(|(i, n)| (count(i), n.clone())).collect();
        }
        if self.log { self.log_ticks() } else { self.linear_ticks() }
    }

    fn linear_ticks(&self) -> Vec<Tick> {
        let step = nice_step(self.to - self.from);
        let mut tick = (self.from / step).ceil() * step;
        let mut ticks = Vec::new();
        while tick <= self.to + step * 1e-6 && ticks.len() < 20 {
            let value = if tick.abs() < step * 1e-6 { 0.0 } else { tick };
            ticks.push((value, text(value, step)));
            tick += step;
        }
        ticks
    }

    fn log_ticks(&self) -> Vec<Tick> {
        let decades = (self.to / self.from).log10();
        let mantissas: &[f64] = if decades < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        // With more than 8 decades, only every second decade has a label.
        let every = if decades > 8.0 { 2 } else { 1 };
        let mut ticks = Vec::new();
        let mut power = 10_f64.powf(self.from.log10().floor());
        let mut n = 0;
        while power <= self.to * 1.001 && n < 40 {
            for mantissa in mantissas {
                let value = mantissa * power;
                if (self.from * 0.999..=self.to * 1.001).contains(&value) && n % every == 0 {
                    ticks.push((value, text(value, value)));
                }
            }
            power *= 10.0;
            n += 1;
        }
        ticks
    }
}

/// Returns a step of 1, 2 or 5 times a power of ten, so that about five steps fill `range`.
fn nice_step(range: f64) -> f64 {
    let raw = (range / 5.0).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(raw.log10().floor());
    let step = match raw / power {
        m if m <= 1.0 => 1.0,
        m if m <= 2.0 => 2.0,
        m if m <= 5.0 => 5.0,
        _ => 10.0,
    };
    step * power
}

/// Formats a tick's value with as many digits as `step` needs. Large tick values have the suffix k,
/// M or G.
fn text(value: f64, step: f64) -> String {
    let (value, step, unit) = match value.abs().max(step.abs()) {
        v if v >= 1e9 => (value / 1e9, step / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, step / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, step / 1e3, "k"),
        _ => (value, step, ""),
    };
    if value == 0.0 {
        return "0".to_owned();
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 12")]
    let digits = (-step.abs().log10()).ceil().clamp(0.0, 12.0) as usize;
    let mut text = format!("{value:.digits$}");
    if text.contains('.') {
        text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    }
    text + unit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(axis: &Axis, values: &[f64]) -> Vec<String> {
        let scale = Scale::new(axis, values.iter().copied(), (0.0, 100.0));
        scale.ticks(axis).into_iter().map(|t| t.1).collect()
    }

    #[test]
    fn ticks_are_round_and_say_their_unit() {
        assert_eq!(ticks(&Axis::linear("x"), &[0.0, 1.0]), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(ticks(&Axis::linear("x"), &[2.5e6]), ["0", "500k", "1M", "1.5M", "2M", "2.5M"]);
        assert_eq!(
            ticks(&Axis::log("x"), &[10.0, 900.0]),
            ["10", "20", "50", "100", "200", "500", "1000"]
        );
        assert_eq!(ticks(&Axis::named("x", ["a", "b"]), &[]), ["a", "b"]);
        assert!(ticks(&Axis::linear("x"), &[-25.0, 3.0]).contains(&"-20".to_owned()));
    }

    #[test]
    fn places_go_from_end_to_end_and_nothing_has_none() {
        let scale = Scale::new(&Axis::log("x"), [1.0, 100.0].into_iter(), (0.0, 100.0));
        assert!((scale.place(10.0).unwrap() - 50.0).abs() < 1e-9);
        assert_eq!(scale.place(0.0), None);
        assert_eq!(scale.place(f64::NAN), None);
        let empty = Scale::new(&Axis::linear("x"), std::iter::empty(), (0.0, 100.0));
        assert!((empty.place(1.0).unwrap() - 100.0).abs() < 1e-9);
    }
}
