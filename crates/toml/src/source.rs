//! This module finds the line and column of a key in the configuration text.

use core::ops::Range;

use toml_edit::{Item, Table, Value};

use crate::error::ConfigError;

/// A configuration text, and the byte positions at which the text's lines begin.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    file: &'a str,
    text: &'a str,
    lines: Vec<usize>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(text: &'a str, file: &'a str) -> Self {
        let after_breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = core::iter::once(0).chain(after_breaks.map(|(at, _)| at + 1)).collect();
        Self { file, text, lines }
    }

    /// Returns the line and column of a byte, each counted from 1. The column is a number of
    /// characters.
    pub(crate) fn position(&self, at: usize) -> (u32, u32) {
        let line = self.lines.partition_point(|start| *start <= at);
        let start = self.lines.get(line.wrapping_sub(1)).copied().unwrap_or(0);
        let column = self.text.get(start..at).map_or(0, |before| before.chars().count()) + 1;
        (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
    }

    /// Returns a [`ConfigError`] at the start of a span of the text.
    pub(crate) fn error(
        &self,
        span: Option<Range<usize>>,
        object: &str,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ConfigError {
        let (line, column) = span.map_or((0, 0), |span| self.position(span.start));
        ConfigError {
            file: self.file.to_owned(),
            line,
            column,
            object: object.to_owned(),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }
}

/// Returns the byte range of the configuration text that contains the value with the path `path`
/// below `table`. The path consists of keys and array indices with dots between them, as in
/// `match.dst_port` or `mac.1`. If the path does not exist, the result is the span of the path's
/// nearest parent.
pub(crate) fn span_of(table: &Table, path: &str) -> Option<Range<usize>> {
    let mut span = table.span();
    let mut steps = path.split('.');
    let Some(item) = steps.next().and_then(|key| table.get(key)) else { return span };
    span = item.span().or(span);
    let mut at = Step::Item(item);
    for key in steps {
        let Some(next) = at.child(key) else { break };
        span = next.span().or(span);
        at = next;
    }
    span
}

/// Step of a path in a TOML document, which is an item or a value.
enum Step<'a> {
    Item(&'a Item),
    Value(&'a Value),
}

impl<'a> Step<'a> {
    fn child(&self, key: &str) -> Option<Self> {
        let value = match self {
            Self::Item(Item::Table(table)) => return table.get(key).map(Step::Item),
            Self::Item(item @ Item::ArrayOfTables(_)) => {
                return item.get(key.parse::<usize>().ok()?).map(Step::Item);
            }
            Self::Item(item) => item.as_value()?,
            Self::Value(value) => value,
        };
        match value {
            Value::InlineTable(table) => table.get(key).map(Step::Value),
            Value::Array(array) => array.get(key.parse().ok()?).map(Step::Value),
            _ => None,
        }
    }

    fn span(&self) -> Option<Range<usize>> {
        match self {
            Self::Item(item) => item.span(),
            Self::Value(value) => value.span(),
        }
    }
}
