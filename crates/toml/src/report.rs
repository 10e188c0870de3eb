//! A report collects the mistakes of a configuration file with their locations.

use core::cell::OnceCell;
use core::fmt;
use core::ops::Range;
use std::collections::BTreeSet;

use serde_json::Value;

use crate::error::{ConfigError, ConfigErrors};
use crate::object::Object;
use crate::schema::number_at;
use crate::source::{Source, span_of};

/// Function that returns the remedy for an unknown key. By default, the remedy lists the known
/// keys. A hint function can return a better remedy, for example for an old key or a key of another
/// table.
pub type Hint = fn(wrong: &str, known: &[&str]) -> Option<String>;

/// Collects the mistakes of a configuration file and finds their locations.
#[derive(Debug)]
pub struct Report<'a> {
    source: Source<'a>,
    errors: Vec<ConfigError>,
    hint: Hint,
    schema: fn() -> String,
    /// Value of `schema`, which only a mistake needs.
    parsed_schema: OnceCell<Value>,
}

impl<'a> Report<'a> {
    pub(crate) const fn new(source: Source<'a>) -> Self {
        Self {
            source,
            errors: Vec::new(),
            hint: |_, _| None,
            schema: String::new,
            parsed_schema: OnceCell::new(),
        }
    }

    /// Sets the function that returns the remedy for unknown keys.
    pub fn set_hint(&mut self, hint: Hint) {
        self.hint = hint;
    }

    pub(crate) fn hint(&self) -> Hint {
        self.hint
    }

    /// Sets the function that returns the JSON Schema of the file. If a number is wrong, the error
    /// names the range from the schema. By default, it names the range of the number's type.
    pub fn set_schema(&mut self, schema: fn() -> String) {
        self.schema = schema;
    }

    /// Returns the schema of the number with the path `path` in the file. The path consists of keys
    /// with dots between them, as in `binding.drain_ms`.
    pub(crate) fn schema_of(&self, path: &str) -> Option<&Value> {
        let read = || serde_json::from_str(&(self.schema)()).unwrap_or_default();
        let schema = self.parsed_schema.get_or_init(read);
        number_at(schema, schema, &path.split('.').collect::<Vec<_>>())
    }

    /// Returns true if the report has no mistake yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Returns all reported mistakes, in the order of the text.
    pub(crate) fn into_errors(self) -> ConfigErrors {
        let mut errors = self.errors;
        errors.sort_by_key(|error| (error.line, error.column));
        errors.dedup();
        ConfigErrors(errors)
    }

    /// Returns the line and column of the header of `object`'s table, each counted from 1. Both are
    /// 0 if the object is not a table.
    #[must_use]
    pub fn place<T>(&self, object: &Object<'_, T>) -> (u32, u32) {
        let span = object.table.as_ref().and_then(|table| table.span());
        span.map_or((0, 0), |span| self.source.position(span.start))
    }

    /// Adds a mistake that concerns the file as a whole.
    pub fn file(&mut self, problem: impl Into<String>, remedy: impl Into<String>) {
        self.span(None, "file", problem, remedy);
    }

    /// Adds the mistakes of another configuration file.
    pub fn adopt(&mut self, errors: ConfigErrors) {
        self.errors.extend(errors.0);
    }

    /// Adds a mistake in `object` at `path`. The path consists of keys and array indices with dots
    /// between them, as in `match.dst_port` or `mac.1`. If the path does not exist, the mistake has
    /// the location of the nearest parent.
    pub fn at<T>(
        &mut self,
        object: &Object<'_, T>,
        path: &str,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let span = object.table.as_ref().and_then(|table| span_of(table, path));
        self.span(span, &object.label, problem, remedy);
    }

    /// Adds a mistake for each value that the list with the path `path` has more than once.
    pub fn twice<T, V: Ord + fmt::Display>(
        &mut self,
        object: &Object<'_, T>,
        path: &str,
        list: &[V],
    ) {
        let mut seen = BTreeSet::new();
        for (at, value) in list.iter().enumerate().filter(|(_, value)| !seen.insert(*value)) {
            let problem = format!("`{path}` names `{value}` twice");
            self.at(object, &format!("{path}.{at}"), problem, "remove one of the two");
        }
    }

    pub(crate) fn span(
        &mut self,
        span: Option<Range<usize>>,
        label: &str,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.errors.push(self.source.error(span, label, problem, remedy));
    }
}
