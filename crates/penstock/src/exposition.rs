//! The two text formats of a `/metrics` page.
//!
//! # Source
//!
//! OpenMetrics 1.0 and Prometheus' exposition format 0.0.4 define the formats. RFC 9110 §12.5.1
//! defines the header `Accept`.
//!
//! # Approach
//!
//! The program writes each page in OpenMetrics. If a scraper prefers `text/plain`, the page is
//! converted to format 0.0.4. A scraper without a preference gets OpenMetrics.

use std::collections::HashSet;

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns a page in the format that the request's headers prefer.
pub fn answer(request: &HeaderMap, page: String) -> Response {
    let values = request.get_all(header::ACCEPT).into_iter().map(HeaderValue::to_str);
    let accept: Vec<&str> = values.filter_map(Result::ok).collect();
    let (kind, page) = match prefers_text(&accept.join(",")) {
        true => (TEXT, text(&page)),
        false => (OPEN_METRICS, page),
    };
    ([(header::CONTENT_TYPE, kind)], page).into_response()
}

/// Whether `text/plain` has a higher weight than `application/openmetrics-text`.
fn prefers_text(accept: &str) -> bool {
    weight(accept, "text/plain") > weight(accept, "application/openmetrics-text")
}

/// Returns the weight of a media type in thousandths. A range without `*` takes precedence over a
/// range with `*`.
fn weight(accept: &str, media: &str) -> u32 {
    let group = media.split('/').next().unwrap_or_default();
    let mut found: Option<(u8, u32)> = None;
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let exactness = match name.split_once('/') {
            _ if name == media => 2,
            Some((of, "*")) if of == group => 1,
            Some(("*", "*")) => 0,
            _ => continue,
        };
        let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f64>().ok());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
        let quality = (quality.unwrap_or(1.0).clamp(0.0, 1.0) * 1_000.0) as u32;
        // If several ranges are equally exact, the highest weight counts.
        found = found.max(Some((exactness, quality)));
    }
    found.map_or(0, |(_, quality)| quality)
}

/// Converts an OpenMetrics page to format 0.0.4. In format 0.0.4, a counter's family has the name
/// of its samples, and there are no units and no end mark.
pub fn text(page: &str) -> String {
    let typed = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let counters: HashSet<&str> = typed.filter_map(|line| line.strip_suffix(" counter")).collect();
    let mut text = String::with_capacity(page.len());
    for line in page.lines() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        match family(line).filter(|(_, name, _)| counters.contains(name)) {
            Some((what, name, rest)) => text.extend(["# ", what, " ", name, "_total ", rest]),
            None => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

/// Splits a line that begins with `# HELP` or `# TYPE`. Returns the word `HELP` or `TYPE`, the name
/// of the metric, and the text after the name.
fn family(line: &str) -> Option<(&str, &str, &str)> {
    let (what, line) = line.strip_prefix("# ")?.split_once(' ')?;
    let (name, rest) = line.split_once(' ')?;
    Some((what, name, rest))
}

/// Checks names and pages as Prometheus' own tool does.
///
/// # Source
///
/// The source is Prometheus' package promlint, which `promtool check metrics` uses.
///
/// # Approach
///
/// This module implements promtool's rules for names of metrics, so that every test run checks the
/// names. If the variable `PROMTOOL` names promtool, the tests also run promtool.
/// `scripts/formats.sh` sets `PROMTOOL`.
#[cfg(test)]
pub mod lint {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    /// Words that a metric's name must not contain: types, and units that are not base units.
    const UNWANTED: [&str; 19] = [
        "bits",
        "kilobytes",
        "megabytes",
        "gigabytes",
        "mebibytes",
        "gibibytes",
        "nanoseconds",
        "microseconds",
        "milliseconds",
        "minutes",
        "hours",
        "days",
        "percent",
        "gauge",
        "counter",
        "histogram",
        "summary",
        "ns",
        "ms",
    ];

    /// Returns the mistakes in the name, the type and the labels of a metric in format 0.0.4.
    pub fn mistakes(name: &str, kind: &str, labels: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut say = |what: String| wrong.push(format!("{name}, a {kind}: {what}"));
        for word in name.split('_').filter(|word| UNWANTED.contains(word)) {
            say(format!("{word:?} in its name"));
        }
        if (kind == "counter") != name.ends_with("_total") {
            say("counters need the suffix _total, and other types must not have it".to_owned());
        }
        if ["_bucket", "_count", "_sum"].iter().any(|end| name.ends_with(end)) {
            say("the suffixes _bucket, _count and _sum are reserved for histograms".to_owned());
        }
        for label in labels.split(", ").filter(|label| ["le", "quantile"].contains(label)) {
            say(format!("label {label} belongs to histograms and summaries"));
        }
        wrong
    }

    /// Returns a page in format 0.0.4 with one value of a metric.
    pub fn example(name: &str, kind: &str, labels: &str, help: &str) -> String {
        let labels: Vec<String> = (labels.split(", ").filter(|label| !label.is_empty()))
            .map(|label| format!("{label}=\"x\""))
            .collect();
        let head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        let value = |end: &str, more: &[String]| {
            format!("{name}{end}{{{}}} 1\n", [&labels[..], more].concat().join(","))
        };
        match kind {
            "histogram" => {
                let le = ["le=\"+Inf\"".to_owned()];
                head + &value("_bucket", &le) + &value("_sum", &[]) + &value("_count", &[])
            }
            _ => head + &value("", &[]),
        }
    }

    /// Runs promtool if the variable `PROMTOOL` names it. Fails if the tool finds a mistake in the
    /// page, which is in format 0.0.4.
    pub fn ask_promtool(page: &str) {
        let Some(promtool) = std::env::var_os("PROMTOOL") else { return };
        let mut command = Command::new(promtool);
        command.args(["check", "metrics"]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
        let out = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned()
            + &String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && said.is_empty(), "promtool: {said}");
    }

    #[test]
    fn what_promtool_refuses_is_refused() {
        for (name, kind, labels) in [
            ("p_wait_nanoseconds", "gauge", ""),
            ("p_rate_bits_per_second", "gauge", ""),
            ("p_frames", "counter", "port"),
            ("p_frames_total", "gauge", "port"),
            ("p_frames_count", "gauge", "port"),
            ("p_wait_seconds", "gauge", "port, quantile"),
        ] {
            assert_eq!(mistakes(name, kind, labels).len(), 1, "{name}");
        }
        assert_eq!(mistakes("p_wait_seconds_total", "counter", "port"), [""; 0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP p_frames frames taken\n# TYPE p_frames counter\n\
        # UNIT p_frames frames\np_frames_total{port=\"a\"} 7\n\
        # HELP p_up up or not\n# TYPE p_up gauge\np_up{port=\"a\"} 1.0\n# EOF\n";

    #[test]
    fn the_format_is_what_the_scraper_prefers() {
        for (accept, is_text) in [
            ("", false),
            ("*/*", false),
            ("text/plain", true),
            ("text/plain; version=0.0.4; q=1, */*;q=0.1", true),
            ("text/*;q=0.3, */*;q=0.1", true),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", false),
            ("application/openmetrics-text;version=1.0.0;q=0,*/*", true),
            // Prometheus 2.40 and 3.0 send these headers.
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,\
                 text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                false,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                 application/openmetrics-text;version=0.0.1;q=0.4,\
                 text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
                 text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                false,
            ),
        ] {
            assert_eq!(prefers_text(accept), is_text, "{accept}");
        }
    }

    #[tokio::test]
    async fn a_page_is_answered_with_its_type() {
        for (accept, kind, begin) in [
            ("text/plain", TEXT, "# HELP p_frames_total frames taken\n"),
            ("*/*", OPEN_METRICS, "# HELP p_frames frames taken\n"),
        ] {
            let request =
                HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            let answer = answer(&request, PAGE.to_owned());
            assert_eq!(answer.headers()[header::CONTENT_TYPE], kind);
            let body = axum::body::to_bytes(answer.into_body(), 10_000).await.unwrap();
            assert!(body.starts_with(begin.as_bytes()), "{body:?}");
        }
    }

    #[test]
    fn in_0_0_4_a_family_is_named_as_its_samples_and_nothing_else_is_said() {
        assert_eq!(
            text(PAGE),
            "# HELP p_frames_total frames taken\n# TYPE p_frames_total counter\n\
             p_frames_total{port=\"a\"} 7\n\
             # HELP p_up up or not\n# TYPE p_up gauge\np_up{port=\"a\"} 1.0\n"
        );
    }
}
