//! Checks the imports between the top-level modules of the crate `dataplane`. A top-level module of
//! `dataplane` is called a room, and [`ROOMS`] defines an order of rooms. The lowest rooms
//! (top-level modules of `dataplane`) have types and counters that all rooms share. Between the
//! lowest and the highest room, the rooms follow the path of a frame through the data path. The
//! highest room is the module with the worker's loop. A file may import only from its own room and
//! from lower rooms.

use crate::circles::imports_of;
use crate::{Finding, Source};

const CRATE: &str = "dataplane";

/// The rooms (modules of the crate `dataplane`), from the lowest to the highest. Modules in the
/// same row of this table must not import each other. Only the modules of the first row, which have
/// types and counters, may import each other.
///
/// The module `queue` is below the module `snapshot`, because a snapshot contains the queues of an
/// output.
const ROOMS: &[&[&str]] = &[
    &[
        "batch",
        "confine",
        "congestion",
        "counters",
        "drop",
        "finish",
        "headers",
        "inbound_shares",
        "ingress_policer",
        "mem",
        "offload",
        "pairs",
        "rtp",
        "sync",
        "tsc",
        "unit",
    ],
    &["capture", "wake"],
    &["port"],
    &["queue"],
    &["snapshot"],
    &["schedule", "classify"],
    &["egress"],
    &["peers"],
    &["worker"],
];

/// Reports imports of modules that are not in a lower row of [`ROOMS`]; modules of the first row
/// may import each other.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, imports) in imports_of(CRATE, sources) {
        let Some(own) = path.first() else { continue };
        let file = format!("crates/{CRATE}/src/{}", path.join("/"));
        let Some(row) = row(own) else {
            let what = format!("{own} has no place in the order of rooms; add it to ROOMS in tidy");
            found.push(Finding::new(&file, 0, what));
            continue;
        };
        for to in imports.iter().filter_map(|to| to.first()).filter(|to| *to != own) {
            let allowed = self::row(to).is_none_or(|other| other < row || (other, row) == (0, 0));
            if !allowed {
                let what = format!(
                    "imports {to}, which is not below {own}; move what both need into a lower room"
                );
                found.push(Finding::new(&file, 0, what));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

fn row(room: &str) -> Option<usize> {
    ROOMS.iter().position(|row| row.contains(&room))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let source = |(path, text): &(&str, &str)| Source {
            path: format!("crates/dataplane/src/{path}"),
            text: (*text).to_owned(),
        };
        let sources: Vec<_> = files.iter().map(source).collect();
        check(&sources).iter().map(ToString::to_string).collect()
    }

    const LIB: (&str, &str) = ("lib.rs", "pub mod port; pub mod worker; pub mod batch;");

    #[test]
    fn an_import_upward_is_found_and_one_downward_is_not() {
        let port = ("port/mod.rs", "use crate::batch::Batch;\nuse crate::worker::Worker;");
        let worker = ("worker/mod.rs", "use crate::port::Port;");
        let batch = ("batch.rs", "use crate::unit::Unit;");
        let unit = ("unit.rs", "");
        assert_eq!(
            found(&[LIB, port, worker, batch, unit]),
            ["crates/dataplane/src/port: imports worker, which is not below port; move what both \
              need into a lower room"]
        );
        assert_eq!(found(&[LIB, worker, batch, unit]), [""; 0]);
    }

    #[test]
    fn rooms_of_one_row_are_apart_and_tests_are_left_out() {
        let tests = "#[cfg(test)]\nmod tests {\n    use crate::worker::Worker;\n}\n";
        let classify = ("classify/mod.rs", "use crate::schedule::Schedule;");
        let files = [("schedule/mod.rs", tests), ("worker/mod.rs", ""), classify];
        assert_eq!(found(&files).len(), 1);
        assert_eq!(found(&files[..2]), [""; 0]);
    }

    #[test]
    fn a_new_folder_needs_a_place() {
        assert_eq!(found(&[("telescope/mod.rs", "")]).len(), 1);
    }
}
