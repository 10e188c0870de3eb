//! Tests of the section `[fabric]`: the keys that it requires, and the keys of other sections that
//! it excludes.

use crate::wrong::{BASE, errors};

const FABRIC: &str = r#"
[[port]]
name = "up"
packet.interface = "eth1"
trunk = ["100-110"]
egress = "wfq"
link = "10G"
"#;

#[test]
fn what_the_fabric_gives_nobody_else_gives() {
    let of = |fabric: &str| errors(&format!("{BASE}{FABRIC}[fabric]\n{fabric}"));
    let told = |fabric: &str| -> Vec<String> {
        of(fabric).iter().map(|e| e.split_once(": ").unwrap().1.to_owned()).collect()
    };
    let right = "controllers = [\"c:7000\"]\nuplink = \"up\"\n";
    assert_eq!(of(right), Vec::<String>::new());
    let nowhere = told("controllers = [\"c:0\", \"a b:1\"]\nuplink = \"up\"\n");
    assert_eq!(nowhere.len(), 2, "{nowhere:?}");
    assert!(nowhere.iter().all(|error| error.contains("has no host or no port")), "{nowhere:?}");
    assert_eq!(
        told(
            "controllers = [\"c\", \"https://c:1\", \"ftp://d:1\"]\nuplink = \"no\"\nname = \"\"\n"
        ),
        [
            "[fabric]: \"c\" has no host or no port; write host and port, as in \"10.0.0.1:7000\"",
            "[fabric]: \"https://c:1\" is an https address, but `tls` is not set; add `tls`",
            "[fabric]: \"ftp://d:1\" is neither http:// nor https://; write host:port",
            "[fabric]: port \"no\" does not exist; name a [[port]] of this file",
            "[fabric]: \"\" is not a name of a server; write the name from the topology (1 to 63 \
            characters, no blanks)",
        ]
    );
    assert_eq!(
        told("controllers = []\nuplink = \"vm1\"\nplan = \"plan\"\n"),
        [
            "[fabric]: 0 controllers; there can be 1 to 16; name the controllers that this host \
             may use",
            "[fabric]: port \"vm1\" has a `tenant`, or its egress is not \"wfq\"; set egress = \
             \"wfq\" and `link` of the uplink's port, and remove the port's `tenant`",
            "[fabric]: path \"plan\" is relative; write an absolute path",
        ]
    );
    let tls = "controllers = [\"http://c:1\"]\nuplink = \"up\"\n\
               tls = { ca = \"a\", cert = \"b\", key = \"c\" }\n";
    let plain = "[fabric]: \"http://c:1\" is an http address, but `tls` is set; write https://";
    assert_eq!(told(tls), [plain]);
    let both = format!("{BASE}{FABRIC}wfq = {{ weights = [1, 2], map = {{ 8 = 1 }} }}\n")
        .replace("name = \"blue\"\n[", "name = \"blue\"\ndscp = 8\n[");
    let got = errors(&format!("{both}[fabric]\n{right}"));
    let wanted = ["assigns DSCPs", "sets `weights` of the", "sets `map` of the"];
    assert_eq!(got.len(), 3, "{got:?}");
    assert!(got.iter().zip(wanted).all(|(error, part)| error.contains(part)), "{got:?}");
}

#[test]
fn the_name_of_a_host_may_be_too_long_for_a_topology() {
    let name = "h".repeat(64);
    let base = BASE.replace("name = \"h1\"", &format!("name = \"{name}\""));
    let fabric = "[fabric]\ncontrollers = [\"c:7000\"]\nuplink = \"up\"\n";
    let found = errors(&format!("{base}{FABRIC}{fabric}"));
    let wanted = format!("\"{name}\" is not a name of a server; write the name from the topology");
    assert!(found.len() == 1 && found[0].contains(&wanted), "{found:?}");
    let named = format!("{base}{FABRIC}{fabric}name = \"server-0\"\n");
    assert_eq!(errors(&named), Vec::<String>::new());
}

#[test]
fn a_list_names_each_entry_once() {
    let of = |sections: &str| errors(&format!("{BASE}{FABRIC}{sections}"));
    let line = BASE.lines().count() + FABRIC.lines().count() + 2;
    let told = |at: usize, column: usize, what: &str| {
        format!("host.toml:{}:{column}: {what} twice; remove one of the two", line + at)
    };
    let controllers = "controllers = [\"c:1\", \"d:1\", \"http://c:1\"]\nuplink = \"up\"\n";
    assert_eq!(
        of(&format!("[fabric]\n{controllers}")),
        [told(0, 30, "[fabric]: `controllers` names `c:1`")]
    );
    let tls = "tls = { ca = \"a\", cert = \"b\", key = \"c\", controllers = [\"x\", \"x\"] }\n";
    assert_eq!(
        of(&format!("[switch]\nports = [\"up\", \"up\"]\nlisten = \"127.0.0.1:1\"\n{tls}")),
        [
            told(0, 16, "[switch]: `ports` names `up`"),
            told(2, 62, "[switch]: `tls.controllers` names `x`"),
        ]
    );
}
