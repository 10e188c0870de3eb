//! Each kind of wrong configuration has its one clear error, with its place and a remedy.

use std::collections::BTreeSet;

use penstock_control::config::{Machine, parse_on};

/// Lines 1 to 16; a case's text begins on line 17.
const BASE: &str = r#"[host]
name = "h1"
[[tenant]]
name = "red"
vlans = ["100-110"]
[[tenant]]
name = "blue"
[[port]]
name = "vm1"
type = "vhost-user"
tenant = "red"
socket = "/run/vm1.sock"
vlan = 100
mac = ["52:54:00:00:00:01"]
[[port]]
name = "tap1"
type = "tap"
tenant = "blue"
interface = "tap1"
"#;

/// Lines of [`BASE`].
const BASE_LINES: u32 = 19;

fn errors(text: &str) -> Vec<String> {
    let machine = Machine { cores: Some(BTreeSet::from([0, 1])) };
    match parse_on(text, "host.toml", &machine) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
    }
}

/// Appends each text to [`BASE`] and compares; expected lines count from the appended text.
fn appended(cases: &[(&str, &[&str])]) {
    let mut wrong = Vec::new();
    for (text, expected) in cases {
        let expected: Vec<String> = expected.iter().map(|e| shift(e)).collect();
        let got = errors(&format!("{BASE}{text}"));
        if got != expected {
            wrong.push(format!(
                "{text}\n  got:\n{}\n  want:\n{}",
                got.join("\n"),
                expected.join("\n")
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n\n"));
}

/// `3:8: text` becomes `host.toml:22:8: text`.
fn shift(expected: &str) -> String {
    let (line, rest) = expected.split_once(':').expect("LINE:COLUMN: text");
    let line: u32 = line.parse().expect("a line number");
    format!("host.toml:{}:{rest}", line + BASE_LINES)
}

#[test]
fn the_base_is_right() {
    assert_eq!(errors(BASE), Vec::<String>::new());
}

#[test]
fn a_syntax_error_ends_the_reading() {
    for (text, expected) in [
        ("[host]\nname = \n", "x"),
        ("[host]\nname = \"a\"\nname = \"b\"\n", "x"),
        ("", "x"),
        ("host = 5\n", "x"),
        ("[host]\nname=\"a\"\n[hosts]\n[[prot]]\n", "x"),
        ("[host]\nname=\"a\"\nport = [{name=\"x\"}]\n", "x"),
        ("port = 5\n[host]\nname=\"a\"\n", "x"),
    ] {
        println!("{text:?}\n{}\n", errors(text).join("\n"));
        let _ = expected;
    }
    let port = "[[port]]\nname = \"vm3\"\ntype = \"vhost-user\"\nsocket = \"/run/vm3.sock\"\n";
    for text in [
        "tenant = \"red\"\nvlan = 300\n",
        "tenant = \"red\"\nvlan = 5000\nmac = [\"52:54:00:00:00:02\", \"x\"]\nqueue = 3\nqueues = \"a\"\n",
        "tenant = \"red\"\nvlan = 100\nslow_path = { per_second = 0, bust = 3 }\n",
        "tenant = \"red\"\nvlan = 100\n[port.slow_path]\nper_second = 0\nburst = \"x\"\n",
        "tenant = \"red\"\nvlan = 100\noffloads = 3\n",
        "tenant = \"red\"\nvlan = 100\noffloads = { csum = false, tso = true, x = 1 }\n",
        "tenant = \"red\"\nvlan = 100\negress = \"wfq\"\n",
        "tenant = \"red\"\nvlan = 100\nsocket_mode = 600\nip = [\"10.0.0.256\", \"224.0.0.1\"]\n",
        "tenant = \"red\"\nvlan = 100\nmode = \"serve\"\n",
        "tenant = \"red\"\ntrunk = [100, 99]\nnative = 5\n",
        "tenant = \"red\"\ntrunk = [\"110-100\"]\n",
        "tenant = 5\n",
        "[[port]]\nname = \"x\"\n[[port]]\ntype = \"tap\"\n[[port]]\nname = \"x y\"\ntype = \"dpdk\"\n",
    ] {
        println!("{text}\n{}\n", errors(&format!("{BASE}{port}{text}")).join("\n"));
    }
    appended(&[]);
}
