//! Finds objects by their labels.

use std::collections::BTreeMap;

use penstock_units::labels::selects;

use super::error::{ApiError, ErrorKind};

/// Label of an object, for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectLabel {
    /// Kind of the object: `port`, `tenant` or `vm`.
    pub kind: &'static str,
    pub name: String,
    pub label: String,
    pub value: String,
}

/// Whether all selectors apply to the labels of an object.
#[must_use]
pub fn selected(selectors: &[String], labels: &BTreeMap<String, String>) -> bool {
    selectors.iter().all(|selector| selects(selector, labels))
}

/// Returns the name of the object that `text` names: `text` itself, or the name of the only object
/// with the label `KEY=VALUE`. Names contain no `=`.
///
/// # Errors
/// Returns an error if no object or several objects have the label.
pub(super) fn named<'a>(
    kind: &str,
    text: &str,
    objects: impl Iterator<Item = (&'a str, &'a BTreeMap<String, String>)>,
) -> Result<String, ApiError> {
    if !text.contains('=') {
        return Ok(text.to_owned());
    }
    let found: Vec<&str> =
        objects.filter(|(_, labels)| selects(text, labels)).map(|(name, _)| name).collect();
    let object = || format!("{kind} {text}");
    match found[..] {
        [only] => Ok(only.to_owned()),
        [] => {
            let key = text.split('=').next().unwrap_or_default();
            let remedy = format!("see `penstock {kind} list -l {key}`");
            let problem = format!("no {kind} has this label");
            Err(ApiError::new(ErrorKind::NotFound, object(), problem, remedy))
        }
        [first, second, ..] => {
            let number = found.len();
            let problem = format!("{number} {kind}s have this label, such as {first} and {second}");
            Err(ApiError::new(ErrorKind::Invalid, object(), problem, "write the name".to_owned()))
        }
    }
}
