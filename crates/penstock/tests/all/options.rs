//! Tests that the page of all options equals the program's help.

use std::path::Path;

use penstock_testing::{committed, help};

use crate::support::BINARY;

const HEAD: &str = "# Options of `penstock`

This page has the help of every command. It is made from the program:
`PENSTOCK_BLESS=1 cargo test -p penstock --test all options` writes it.
[Command line](cli.md) explains output and concepts.
";

#[test]
fn the_page_of_options_is_the_help() {
    let text = format!("{HEAD}{}", help::sections(Path::new(BINARY), "penstock"));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli-options.md");
    committed::compare(&page, &text, "-p penstock --test all options");
}
