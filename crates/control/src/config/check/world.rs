//! What the checks of single objects share: the whole that they ask, and forms of values.

use std::collections::{BTreeMap, HashMap};

use penstock_toml::{Object, Report};

use super::super::draft::Draft;
use super::super::model::{Port, Tenant};
use super::super::network::Networks;

/// Longest name.
const NAME_BYTES_MAX: usize = 32;
/// Longest path of a unix socket: `sun_path` has 108 bytes, the last one 0.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// What the checks of single objects ask of the whole.
pub(super) struct World<'a> {
    pub(super) networks: Networks,
    pub(super) tenants: HashMap<&'a str, Option<&'a Tenant>>,
    pub(super) ports: HashMap<&'a str, Option<&'a Port>>,
}

impl<'a> World<'a> {
    pub(super) fn new(draft: &'a Draft<'_>) -> Self {
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
    pub(super) fn vlans_text(tenant: &Tenant) -> String {
        if tenant.vlans.is_empty() { "untagged".to_owned() } else { tenant.vlans.to_string() }
    }
}

/// A name's form, and that nothing of the same kind has it already.
pub(super) fn check_names<T>(objects: &[Object<'_, T>], report: &mut Report<'_>) {
    let mut seen: BTreeMap<&str, ()> = BTreeMap::new();
    for object in objects {
        let Some(name) = object.name.as_deref() else { continue };
        check_name(object, name, report);
        if seen.insert(name, ()).is_some() {
            let problem = format!("the name {name:?} is used twice");
            report.at(object, "name", problem, "give each its own name");
        }
    }
}

pub(super) fn check_name<T>(object: &Object<'_, T>, name: &str, report: &mut Report<'_>) {
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
pub(super) fn check_count<T>(
    objects: &[Object<'_, T>],
    kind: &str,
    max: usize,
    report: &mut Report<'_>,
) {
    if let Some(first) = objects.get(max) {
        let problem = format!("{} {kind}s are too many, the limit is {max}", objects.len());
        report.at(first, "name", problem, format!("remove {}", objects.len() - max));
    }
}

/// That a number is within its range.
pub(super) fn check_range<T>(
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
pub(super) fn check_socket<T>(
    object: &Object<'_, T>,
    path: &str,
    socket: &std::path::Path,
    report: &mut Report<'_>,
) {
    let bytes = socket.as_os_str().len();
    if !socket.is_absolute() {
        let problem = format!("socket path {socket:?} is relative");
        report.at(object, path, problem, "write an absolute path");
    } else if bytes > SOCKET_PATH_BYTES_MAX {
        let problem = format!(
            "socket path has {bytes} bytes, the limit of a unix socket is {SOCKET_PATH_BYTES_MAX}"
        );
        report.at(object, path, problem, "choose a shorter directory or name");
    }
}
