//! Functions and types that the tests of wrong configurations share.

use std::collections::BTreeSet;

use penstock_control::config::{Machine, parse_on};

/// A valid configuration. A valid configuration to which each test case appends text with a
/// mistake.
pub const BASE: &str = r#"[host]
name = "h1"
[[tenant]]
name = "red"
vlans = ["100-110"]
[[tenant]]
name = "blue"
[[port]]
name = "vm1"
tenant = "red"
vhost-user.socket = "/run/vm1.sock"
vlan = 100
mac = ["52:54:00:00:00:01"]
[[port]]
name = "tap1"
tenant = "blue"
tap.interface = "tap1"
"#;

/// A text that is appended to [`BASE`], and the errors that the text causes.
pub type Case = (&'static str, &'static [&'static str]);

/// Returns all errors of a configuration, as the user sees them, on a machine with cores 0 and 1.
pub fn errors(text: &str) -> Vec<String> {
    let machine = Machine { cores: Some(BTreeSet::from([0, 1])) };
    match parse_on(text, "host.toml", &machine) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
    }
}

/// Appends each text to [`BASE`] and compares all errors with the expected errors. In the expected
/// errors, line 1 is the first line of the appended text.
pub fn appended(cases: &[(&str, &[&str])]) {
    let mut wrong = Vec::new();
    for (text, expected) in cases {
        let expected: Vec<String> = expected.iter().map(|error| shift(error)).collect();
        let got = errors(&format!("{BASE}{text}"));
        if got != expected {
            let (got, expected) = (got.join("\n"), expected.join("\n"));
            wrong.push(format!("{text}got:\n{got}\nexpected:\n{expected}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n\n"));
}

/// Changes the place of an error from the appended text to the whole file, so that `3:8: text`
/// becomes `host.toml:22:8: text`.
fn shift(expected: &str) -> String {
    let (line, rest) = expected.split_once(':').expect("LINE:COLUMN: text");
    let line: usize = line.parse().expect("a line number");
    format!("host.toml:{}:{rest}", line + BASE.lines().count())
}
