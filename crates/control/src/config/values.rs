//! Checks single values that several tables share: names, numbers and paths.

use std::collections::BTreeMap;
use std::path::Path;

use penstock_toml::{Object, Report};
use penstock_units::{NAME_REMEDY, NODE_BYTES_MAX};

/// Longest path of a unix socket in bytes, which is one byte less than `sun_path` (108).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Checks that the name of each object has a valid form and that no two objects have the same name.
pub(super) fn check_names<T>(objects: &[Object<'_, T>], report: &mut Report<'_>) {
    let mut seen: BTreeMap<&str, ()> = BTreeMap::new();
    for object in objects {
        let Some(name) = object.name.as_deref() else { continue };
        check_name(object, name, report);
        if seen.insert(name, ()).is_some() {
            let problem = format!("the name {name:?} is used twice");
            report.at(object, "name", problem, "choose another name");
        }
    }
}

pub(super) fn check_name<T>(object: &Object<'_, T>, name: &str, report: &mut Report<'_>) {
    if let Err(mistake) = penstock_units::check_name(name) {
        report.at(object, "name", mistake.to_string(), NAME_REMEDY);
    }
}

/// Reports a mistake at the first object that exceeds the limit of `max` objects of a kind.
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

/// Reports a number that is outside its range.
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

/// Checks that a path is valid for a unix socket.
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

/// Reports a value that is outside `range`. `key` is the key's path in the file, as in
/// `queue.bytes`.
pub(super) fn outside<T, V: PartialOrd + core::fmt::Display>(
    object: &Object<'_, T>,
    key: &str,
    value: V,
    range: &core::ops::RangeInclusive<V>,
    report: &mut Report<'_>,
) {
    if !range.contains(&value) {
        let problem = format!("`{key}` {value} is out of range");
        report.at(object, key, problem, format!("write {} to {}", range.start(), range.end()));
    }
}

/// Checks the name of a server or switch in a topology; `kind` is "server" or "switch".
pub(super) fn check_node<T>(
    object: &Object<'_, T>,
    name: Option<&str>,
    kind: &str,
    report: &mut Report<'_>,
) {
    let wrong = |name: &&str| {
        name.is_empty()
            || name.len() > NODE_BYTES_MAX
            || name.chars().any(|c| c.is_control() || c.is_whitespace())
    };
    if let Some(name) = name.filter(wrong) {
        let problem = format!("{name:?} is not a name of a {kind}");
        let remedy = format!(
            "write the name from the topology (1 to {NODE_BYTES_MAX} characters, no blanks)"
        );
        report.at(object, "name", problem, remedy);
    }
}

pub(super) fn check_absolute<T>(
    object: &Object<'_, T>,
    key: &str,
    path: Option<&Path>,
    report: &mut Report<'_>,
) {
    if let Some(path) = path.filter(|path| !path.is_absolute()) {
        report.at(object, key, format!("path {path:?} is relative"), "write an absolute path");
    }
}
