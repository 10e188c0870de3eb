//! Tests that the reference page of `penstock-lab` options equals the program's help.

use std::path::Path;

use penstock_testing::{committed, help};

const HEAD: &str = "# Options of `penstock-lab`

This page has the help of every command. It is made from the program:
`PENSTOCK_BLESS=1 cargo test -p penstock-lab --test all options` writes it.
[Command line](cli.md#lab) explains what the commands do.
";

#[test]
fn the_page_of_options_is_the_help() {
    let program = Path::new(env!("CARGO_BIN_EXE_penstock-lab"));
    let text = format!("{HEAD}{}", help::sections(program, "penstock-lab"));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/lab-options.md");
    committed::compare(&page, &text, "-p penstock-lab --test all options");
}
