//! What a configuration's objects say of themselves and of each other.
//!
//! **Rule.** A check reports and goes on. It looks only at objects that could be read; whether a
//! name exists is asked of all, so that one mistake is reported once.

mod fdb;
mod host;
mod joining;
mod ports;
mod queueing;
mod receiving;
mod rules;
mod switching;
mod tenants;
mod vcpus;

use std::collections::{BTreeMap, HashMap};

use super::HostConfig;
use super::decode::{Draft, Object, Report};
use super::machine::Machine;
use super::model::{Port, Tenant};
use super::network::Networks;

/// Longest name.
const NAME_BYTES_MAX: usize = 32;
/// Longest path of a unix socket: `sun_path` has 108 bytes, the last one 0.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// What the checks of single objects ask of the whole.
struct World<'a> {
    networks: Networks,
    tenants: HashMap<&'a str, Option<&'a Tenant>>,
    ports: HashMap<&'a str, Option<&'a Port>>,
}

impl<'a> World<'a> {
    fn new(draft: &'a Draft<'_>) -> Self {
        fn by_name<'a, T>(objects: &'a [Object<'_, T>]) -> HashMap<&'a str, Option<&'a T>> {
            let named = objects.iter().rev();
            named.filter_map(|o| Some((o.name.as_deref()?, o.value.as_ref()))).collect()
        }
        Self {
            networks: Networks::new(draft.tenants.iter().map(|t| t.value.as_ref())),
            tenants: by_name(&draft.tenants),
            ports: by_name(&draft.ports),
        }
    }

    /// `red ("100-110")`-like text of what a tenant has.
    fn vlans_text(tenant: &Tenant) -> String {
        if tenant.vlans.is_empty() { "untagged".to_owned() } else { tenant.vlans.to_string() }
    }
}

/// Reports every mistake in `draft`.
pub(super) fn check(draft: &Draft<'_>, machine: &Machine, report: &mut Report<'_>) {
    let world = World::new(draft);
    host::check(draft, machine, report);
    joining::check(draft, &world, report);
    switching::check(draft, &world, report);
    tenants::check(draft, &world, report);
    ports::check(draft, &world, report);
    vcpus::check(draft, machine, report);
    rules::check(draft, &world, report);
    fdb::check(draft, &world, report);
}

/// Reports rules that together do not make a table: too many different masks.
pub(super) fn check_tables(config: &HostConfig, draft: &Draft<'_>, report: &mut Report<'_>) {
    for (rule, problem) in crate::snapshot::check_rules(config) {
        if let Some(object) = draft.rules.get(rule) {
            let remedy = "use fewer combinations of fields, prefix lengths and port ranges";
            report.at(object, "match", problem, remedy);
        }
    }
}

/// A name's form, and that nothing of the same kind has it already.
fn check_names<T>(objects: &[Object<'_, T>], report: &mut Report<'_>) {
    let mut seen: BTreeMap<&str, ()> = BTreeMap::new();
    for object in objects {
        let Some(name) = object.name.as_deref() else { continue };
        check_name(object, name, report);
        if seen.insert(name, ()).is_some() {
            let problem = format!("the name {name:?} is taken by another above");
            report.at(object, "name", problem, "give each its own name");
        }
    }
}

fn check_name<T>(object: &Object<'_, T>, name: &str, report: &mut Report<'_>) {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let remedy = format!("write 1 to {NAME_BYTES_MAX} characters of a-z A-Z 0-9 . _ -");
    if name.is_empty() {
        report.at(object, "name", "the name is empty", remedy);
    } else if let Some(c) = name.chars().find(|c| !allowed(*c)) {
        report.at(object, "name", format!("the name contains {c:?}"), remedy);
    } else if name.len() > NAME_BYTES_MAX {
        let problem = format!("the name has {} characters, the limit is 32", name.len());
        report.at(object, "name", problem, remedy);
    }
}

/// That there are not more than `max` objects; said of the first one too many.
fn check_count<T>(objects: &[Object<'_, T>], kind: &str, max: usize, report: &mut Report<'_>) {
    if let Some(first) = objects.get(max) {
        let problem = format!("{} {kind}s are too many, the limit is {max}", objects.len());
        report.at(first, "name", problem, format!("remove {}", objects.len() - max));
    }
}

/// That a number is within its range.
fn check_range<T>(
    object: &Object<'_, T>,
    path: &str,
    value: u32,
    range: core::ops::RangeInclusive<u32>,
    report: &mut Report<'_>,
) {
    if !range.contains(&value) {
        let key = path.rsplit('.').next().unwrap_or(path);
        let problem = format!("`{key}` {value} is out of range");
        let remedy = format!("write a number from {} to {}", range.start(), range.end());
        report.at(object, path, problem, remedy);
    }
}

/// That a path can be a unix socket.
fn check_socket<T>(
    object: &Object<'_, T>,
    path: &str,
    socket: &std::path::Path,
    report: &mut Report<'_>,
) {
    let bytes = socket.as_os_str().len();
    if !socket.is_absolute() {
        let problem = format!("socket path {socket:?} is relative");
        report.at(object, path, problem, "begin it with /");
    } else if bytes > SOCKET_PATH_BYTES_MAX {
        let problem = format!(
            "socket path has {bytes} bytes, the limit of a unix socket is {SOCKET_PATH_BYTES_MAX}"
        );
        report.at(object, path, problem, "choose a shorter directory or name");
    }
}
