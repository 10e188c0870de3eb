//! The objects of a configuration's text, each read by itself.
//!
//! **Rule.** serde stops at an object's first mistake. So that all mistakes are reported, the key
//! at fault is taken out of a copy of the object, and the rest is read again. An object whose only
//! mistakes are unknown keys is checked as if it did not have them. Objects that could be read are
//! checked against each other even if others could not be read. A reference to a broken object is
//! not a second mistake.

use core::ops::Range;
use std::borrow::Cow;

use penstock_vcpu::terms::{VcpuSection, VmTable};
use serde::de::DeserializeOwned;
use toml_edit::{DocumentMut, Item, Table, Value};

use super::error::{ConfigError, ConfigErrors};
use super::joining::FabricSection;
use super::model::{
    FdbStatic, ForwardingSection, HostConfig, HostSection, Port, Tenant, WorkerSection,
};
use super::rule::Rule;
use super::share::ModelSection;
use super::source::{Source, span_of};
use super::switching::SwitchSection;
use super::upgrade::ATTACHMENT;

const SECTIONS: [&str; 12] = [
    "host",
    "worker",
    "forwarding",
    "model",
    "fabric",
    "switch",
    "vcpu",
    "tenant",
    "port",
    "vm",
    "rule",
    "fdb",
];

/// A table of the text and what was read from it.
#[derive(Debug)]
pub(super) struct Object<'a, T> {
    /// `port "vm3"`, `[worker]`.
    pub(super) label: String,
    /// Its `name`, if that much could be read.
    pub(super) name: Option<String>,
    /// `None` if a key that is known has a mistake.
    pub(super) value: Option<T>,
    /// `None` for a section that the text does not have.
    pub(super) table: Option<Cow<'a, Table>>,
}

/// A configuration while it is being checked.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    pub(super) host: Object<'a, HostSection>,
    pub(super) worker: Object<'a, WorkerSection>,
    pub(super) forwarding: Object<'a, ForwardingSection>,
    pub(super) model: Object<'a, ModelSection>,
    pub(super) fabric: Option<Object<'a, FabricSection>>,
    pub(super) switch: Option<Object<'a, SwitchSection>>,
    pub(super) vcpu: Option<Object<'a, VcpuSection>>,
    pub(super) tenants: Vec<Object<'a, Tenant>>,
    pub(super) ports: Vec<Object<'a, Port>>,
    pub(super) vms: Vec<Object<'a, VmTable>>,
    pub(super) rules: Vec<Object<'a, Rule>>,
    pub(super) fdb: Vec<Object<'a, FdbStatic>>,
}

/// Collects mistakes and gives them their places.
#[derive(Debug)]
pub(super) struct Report<'a> {
    source: Source<'a>,
    errors: Vec<ConfigError>,
}

impl<'a> Report<'a> {
    /// Without mistakes.
    pub(super) const fn new(source: Source<'a>) -> Self {
        Self { source, errors: Vec::new() }
    }

    /// # Errors
    /// If there is a mistake: all of them, in the order of the text.
    pub(super) fn finish(self) -> Result<(), ConfigErrors> {
        if self.errors.is_empty() { Ok(()) } else { Err(self.into_errors()) }
    }

    /// Whether there is no mistake so far.
    pub(super) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// All mistakes, in the order of the text.
    pub(super) fn into_errors(self) -> ConfigErrors {
        let mut errors = self.errors;
        errors.sort_by_key(|error| (error.line, error.column));
        errors.dedup();
        ConfigErrors(errors)
    }

    /// A mistake of the file as a whole.
    pub(super) fn file(&mut self, problem: impl Into<String>, remedy: impl Into<String>) {
        self.span(None, "file", problem, remedy);
    }

    /// Adds the mistakes of another file.
    pub(super) fn adopt(&mut self, errors: ConfigErrors) {
        self.errors.extend(errors.0);
    }

    /// A mistake in `object` at `path` (see [`span_of`]).
    pub(super) fn at<T>(
        &mut self,
        object: &Object<'_, T>,
        path: &str,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let span = object.table.as_ref().and_then(|table| span_of(table, path));
        self.span(span, &object.label, problem, remedy);
    }

    fn span(
        &mut self,
        span: Option<Range<usize>>,
        label: &str,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.errors.push(self.source.error(span, label, problem, remedy));
    }
}

impl Draft<'_> {
    pub(super) fn finish(&self) -> Option<HostConfig> {
        fn all<T: Clone>(objects: &[Object<'_, T>]) -> Option<Vec<T>> {
            objects.iter().map(|object| object.value.clone()).collect()
        }
        Some(HostConfig {
            host: self.host.value.clone()?,
            worker: self.worker.value.clone()?,
            forwarding: self.forwarding.value.clone()?,
            model: self.model.value.clone()?,
            fabric: match &self.fabric {
                Some(fabric) => Some(fabric.value.clone()?),
                None => None,
            },
            switch: match &self.switch {
                Some(switch) => Some(switch.value.clone()?),
                None => None,
            },
            vcpu: match &self.vcpu {
                Some(vcpu) => Some(vcpu.value.clone()?),
                None => None,
            },
            tenants: all(&self.tenants)?,
            ports: all(&self.ports)?,
            vms: all(&self.vms)?,
            rules: all(&self.rules)?,
            fdb: all(&self.fdb)?,
        })
    }
}

pub(super) fn read_draft<'a>(root: &'a Table, report: &mut Report<'_>) -> Draft<'a> {
    unknown_sections(root, &SECTIONS, report);
    let host = match section(root, "host", report) {
        Some(host) => host,
        None => {
            let mut remedy = "add [host] with `name = \"...\"`".to_owned();
            if root.contains_key("vcpu") {
                remedy.push_str(
                    "; if it is for `penstock vcpu run` alone, `penstock vcpu check --config FILE` \
                     checks it",
                );
            }
            report.span(None, "file", "the section [host] is missing", remedy);
            Object { label: "[host]".to_owned(), name: None, value: None, table: None }
        }
    };
    Draft {
        host,
        worker: section(root, "worker", report).unwrap_or_else(|| absent("[worker]")),
        forwarding: section(root, "forwarding", report).unwrap_or_else(|| absent("[forwarding]")),
        model: section(root, "model", report).unwrap_or_else(|| absent("[model]")),
        fabric: section(root, "fabric", report),
        switch: section(root, "switch", report),
        vcpu: section(root, "vcpu", report),
        tenants: list(root, "tenant", report),
        ports: list(root, "port", report),
        vms: list(root, "vm", report),
        rules: list(root, "rule", report),
        fdb: list(root, "fdb", report),
    }
}

/// Reports tables that are none of `known`.
pub(super) fn unknown_sections(root: &Table, known: &[&str], report: &mut Report<'_>) {
    for (key, _) in root.iter().filter(|(key, _)| !known.contains(key)) {
        let span = root.key(key).and_then(toml_edit::Key::span);
        report.span(span, "file", format!("unknown key `{key}`"), unknown_remedy(key, known));
    }
}

fn absent<'a, T: Default>(label: &str) -> Object<'a, T> {
    Object { label: label.to_owned(), name: None, value: Some(T::default()), table: None }
}

pub(super) fn section<'a, T: DeserializeOwned>(
    root: &'a Table,
    key: &str,
    report: &mut Report<'_>,
) -> Option<Object<'a, T>> {
    let label = format!("[{key}]");
    let table = match root.get(key)? {
        Item::Table(table) => Cow::Borrowed(table),
        item => match item.clone().into_table() {
            Ok(table) => Cow::Owned(table),
            Err(item) => {
                let problem = format!("`{key}` is not a table but {}", item.type_name());
                report.span(item.span(), &label, problem, format!("write {label}"));
                return Some(Object { label, name: None, value: None, table: None });
            }
        },
    };
    Some(object(label, table, report))
}

pub(super) fn list<'a, T: DeserializeOwned>(
    root: &'a Table,
    key: &str,
    report: &mut Report<'_>,
) -> Vec<Object<'a, T>> {
    let Some(item) = root.get(key) else { return Vec::new() };
    let Item::ArrayOfTables(tables) = item else {
        let label = format!("[[{key}]]");
        let problem = format!("`{key}` is not a list of tables but {}", item.type_name());
        report.span(item.span(), &label, problem, format!("write {label} above each {key}"));
        return Vec::new();
    };
    let label = |at: usize, table: &Table| {
        let name = |key| table.get(key).and_then(Item::as_str);
        match (name("name"), name("mac")) {
            (Some(name), _) => format!("{key} {name:?}"),
            (None, Some(mac)) if key == "fdb" => format!("fdb {mac}"),
            _ => format!("[[{key}]] number {}", at + 1),
        }
    };
    let tables = tables.iter().enumerate();
    tables.map(|(at, table)| object(label(at, table), Cow::Borrowed(table), report)).collect()
}

/// Reads one object, reporting each of its keys that is wrong.
fn object<'a, T: DeserializeOwned>(
    label: String,
    table: Cow<'a, Table>,
    report: &mut Report<'_>,
) -> Object<'a, T> {
    let mut rest = table.as_ref().clone();
    let mut value = None;
    // Whether unknown keys that look like no known one are all that was taken out: the rest is
    // meant as it stands, and is checked. After a misspelt key it would seem incomplete.
    let mut is_whole = true;
    let mut taken_out: Vec<String> = Vec::new();
    loop {
        match toml_edit::de::from_document::<T>(DocumentMut::from(rest.clone())) {
            Ok(read) => {
                value = is_whole.then_some(read);
                break;
            }
            Err(error) => {
                is_whole &= is_stray(error.message());
                // Each round takes something out, so it ends.
                let key = error.span().and_then(|span| take_out(&mut rest, span.start));
                let ours = missing_key(error.message()).is_some_and(|m| taken_out.contains(&m));
                if !ours {
                    let span = error.span().or_else(|| table.span());
                    let (problem, remedy) = explain(error.message(), key.as_deref());
                    report.span(span, &label, problem, remedy);
                }
                match key {
                    Some(key) => taken_out.push(key),
                    None => break,
                }
            }
        }
    }
    let name = table.get("name").and_then(Item::as_str).map(str::to_owned);
    Object { label, name, value, table: Some(table) }
}

/// Takes the innermost key or array element at byte `at` of the text out of `table`; returns its
/// keys with dots between them.
fn take_out(table: &mut Table, at: usize) -> Option<String> {
    let spot = table.iter().find_map(|(name, item)| {
        let on_key = holds(table.key(name).and_then(toml_edit::Key::span), at);
        let nested = item.as_table().is_some_and(|inner| span_covers(inner, at));
        (on_key || nested || holds(item.span(), at)).then(|| (name.to_owned(), on_key))
    });
    let (name, on_key) = spot?;
    let inner = match table.get_mut(&name) {
        Some(Item::Table(inner)) if !on_key => take_out(inner, at),
        Some(Item::Value(value)) if !on_key => take_out_of_value(value, at),
        _ => None,
    };
    match inner {
        Some(inner) if inner.is_empty() => Some(name),
        Some(inner) => Some(format!("{name}.{inner}")),
        None => table.remove(&name).map(|_| name),
    }
}

/// As [`take_out`]; an array's element has no name.
fn take_out_of_value(value: &mut Value, at: usize) -> Option<String> {
    match value {
        Value::Array(array) => {
            let place = array.iter().position(|element| holds(element.span(), at))?;
            array.remove(place);
            Some(String::new())
        }
        Value::InlineTable(table) => {
            let name = table.iter().find_map(|(name, value)| {
                let key = table.key(name).and_then(toml_edit::Key::span);
                (holds(key, at) || holds(value.span(), at)).then(|| name.to_owned())
            })?;
            table.remove(&name).map(|_| name)
        }
        _ => None,
    }
}

fn holds(span: Option<Range<usize>>, at: usize) -> bool {
    span.is_some_and(|span| span.contains(&at))
}

/// Whether byte `at` is in a key or value of a table, whose own span is only its header.
fn span_covers(table: &Table, at: usize) -> bool {
    table.iter().any(|(name, item)| {
        holds(table.key(name).and_then(toml_edit::Key::span), at) || holds(item.span(), at)
    })
}

/// Whether serde's message is about an unknown key that looks like no known one.
fn is_stray(message: &str) -> bool {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let Some((wrong, known)) = quoted.split_first() else { return false };
    message.starts_with("unknown field") && *wrong != "type" && meant(wrong, known).is_none()
}

/// The key that serde says is missing.
fn missing_key(message: &str) -> Option<String> {
    let key = message.strip_prefix("missing field `")?.split('`').next()?;
    Some(key.to_owned())
}

/// Puts serde's words into ours: (problem, remedy).
fn explain(message: &str, key: Option<&str>) -> (String, String) {
    let at = |problem: &str| match key {
        Some(key) => format!("`{key}`: {problem}"),
        None => problem.to_owned(),
    };
    if let Some(missing) = missing_key(message) {
        return (format!("`{missing}` is missing"), format!("add `{missing} = ...`"));
    }
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    if message.starts_with("unknown field") {
        let (wrong, known) = quoted.split_first().unwrap_or((&"", &[]));
        return (format!("unknown key `{wrong}`"), unknown_remedy(wrong, known));
    }
    if message.starts_with("unknown variant") {
        let (wrong, known) = quoted.split_first().unwrap_or((&"", &[]));
        return (at(&format!("\"{wrong}\" is unknown")), format!("write {}", known.join(", ")));
    }
    if let Some((problem, remedy)) = message.split_once("; ") {
        return (at(problem), remedy.to_owned());
    }
    let example = match message {
        "invalid IP address syntax" => Some("write an address, as in \"10.0.0.1\""),
        "invalid socket address syntax" => Some("write address and port, as in \"127.0.0.1:9753\""),
        _ => None,
    };
    if let Some(example) = example {
        return (at(message), example.to_owned());
    }
    match message.rsplit_once(", expected ") {
        Some((problem, "u16")) => (at(problem), "write a whole number from 0 to 65535".to_owned()),
        Some((problem, "u32")) => (at(problem), "write a whole number, 0 or above".to_owned()),
        Some((problem, expected)) => (at(problem), format!("write {expected}")),
        None => (at(message), "see docs/reference/configuration.md".to_owned()),
    }
}

fn unknown_remedy(wrong: &str, known: &[&str]) -> String {
    if known.contains(&"vhost-user") {
        // A port's own keys, and one of what it attaches to.
        if ATTACHMENT.contains(&wrong) {
            return format!("write it into the table of the port's type, as in tap.{wrong}");
        }
        if wrong == "type" {
            return "write a table of that name: vhost-user, tap, packet or xdp, as in \
                    tap.interface = \"tap1\""
                .to_owned();
        }
    }
    match meant(wrong, known) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("known here: {}", known.join(", ")),
    }
}

/// The known key that an unknown one looks like.
fn meant<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    let close = known.iter().copied().filter(|name| distance(name, wrong) <= 2);
    close.min_by_key(|name| distance(name, wrong))
}

/// Edits (insert, delete, replace) between two words; for words of a few letters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
