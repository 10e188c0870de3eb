//! Functions and types that the tests of wrong configurations share.

use std::collections::BTreeSet;

use penstock_control::config::{Machine, parse_on};

/// A valid configuration, to which each test case appends text with a mistake.
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

/// Lines of a case that stand for the first lines of a port. If a number follows, for example in
/// `@red 100`, one more line gives the port this VLAN.
const PORTS: [(&str, &str); 3] = [
    ("@red", "[[port]]\nname = \"vm3\"\nvhost-user.socket = \"/run/vm3.sock\"\ntenant = \"red\"\n"),
    (
        "@blue",
        "[[port]]\nname = \"vm3\"\nvhost-user.socket = \"/run/vm3.sock\"\ntenant = \"blue\"\n",
    ),
    ("@up", "[[port]]\nname = \"up\"\ntap.interface = \"up0\"\n"),
];

/// Returns all errors of a configuration, as the user sees them, on a machine with cores 0 and 1.
pub fn errors(text: &str) -> Vec<String> {
    let machine = Machine { cores: Some(BTreeSet::from([0, 1])) };
    match parse_on(text, "host.toml", &machine) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
    }
}

/// Appends the text of each case to [`BASE`], and compares all errors with the expected errors.
///
/// A case is a text, and then its errors. An error begins with `#! `, and continues on lines that
/// begin with `#!   `. A valid text has `#! none` instead. In the expected errors, line 1 is the
/// first line of the text, and the lines of [`PORTS`] count in full.
pub fn appended(cases: &str) {
    let mut wrong = Vec::new();
    let mut lines = cases.trim_start().lines().peekable();
    while lines.peek().is_some() {
        let mut text = String::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with("#!")) {
            text += &expand(line);
        }
        let mut expected: Vec<String> = Vec::new();
        while let Some(line) = lines.next_if(|line| line.starts_with("#!")) {
            match (line.strip_prefix("#!   "), expected.last_mut()) {
                (Some(more), Some(error)) => *error += &format!(" {more}"),
                _ => expected.push(line.trim_start_matches("#! ").to_owned()),
            }
        }
        assert!(!expected.is_empty(), "a case without errors and without `#! none`:\n{text}");
        expected.retain(|error| error != "none");
        let expected: Vec<String> = expected.iter().map(|error| shift(error)).collect();
        let got = errors(&format!("{BASE}{text}"));
        if got != expected {
            let (got, expected) = (got.join("\n"), expected.join("\n"));
            wrong.push(format!("{text}got:\n{got}\nexpected:\n{expected}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n\n"));
}

/// Returns a line of a case, or the lines of [`PORTS`] that it stands for.
fn expand(line: &str) -> String {
    let (name, vlan) = line.split_once(' ').unwrap_or((line, ""));
    let Some((_, port)) = PORTS.iter().find(|(known, _)| *known == name) else {
        return format!("{line}\n");
    };
    let vlan = if vlan.is_empty() { String::new() } else { format!("vlan = {vlan}\n") };
    format!("{port}{vlan}")
}

/// Changes the place of an error from the appended text to the whole file, so that `3:8: text`
/// becomes `host.toml:22:8: text`.
fn shift(expected: &str) -> String {
    let (line, rest) = expected.split_once(':').expect("LINE:COLUMN: text");
    let line: usize = line.parse().expect("a line number");
    format!("host.toml:{}:{rest}", line + BASE.lines().count())
}
