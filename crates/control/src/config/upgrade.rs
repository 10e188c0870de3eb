//! Accepts files of the previous release: replaces old keys by current keys, and keeps comments in
//! place.
//!
//! A release accepts only the outdated keys of the previous release. The function [`outdated`]
//! lists the old keys of a file, and [`current`] rewrites the file:
//! - Some keys of the previous release have a new name ([`RENAMED`]).
//! - Files of the previous release have the keys of a port's attachment directly in `[[port]]`,
//!   beside the key `type`. The keys of an attachment move from `[[port]]` into a table with the
//!   name of the attachment's type. For example, `socket` of a `vhost-user` port becomes
//!   `vhost-user.socket`.
//! - If a table has both an old key and the key that replaces the old key, the old key stays. The
//!   check of the configuration refuses a table with both keys.

use toml_edit::{DocumentMut, Item, Key, Table};

use super::attachment::Attachment;

/// Renamed keys: the table, the old key, and the current key.
const RENAMED: [(&str, &str, &str); 3] = [
    ("tenant", "weight", "uplink_weight"),
    ("port", "weight", "cycle_weight"),
    ("port", "share", "uplink_share"),
];

/// Keys of a port's attachment in a file of the previous release.
pub(super) const ATTACHMENT: [&str; 11] = [
    "socket",
    "mode",
    "socket_mode",
    "socket_owner",
    "socket_group",
    "interface",
    "netns",
    "queues",
    "zero_copy",
    "offloads",
    "mtu",
];

/// An outdated key, the number of tables that contain the key, and the name of the first of these
/// tables.
#[derive(Debug)]
pub(super) struct Old {
    table: &'static str,
    before: String,
    now: String,
    count: usize,
    first: String,
}

/// Returns one sentence for each old key in `text`. The returned list is empty if the text is not
/// TOML.
#[must_use]
pub fn outdated(text: &str) -> Vec<String> {
    let Ok(mut document) = text.parse::<DocumentMut>() else { return Vec::new() };
    let told = |old: Old| {
        let Old { table, before, now, count, first } = old;
        let verb = if before.contains(", ") { "are" } else { "is" };
        let all = if count == 1 { String::new() } else { format!(" and {} more", count - 1) };
        format!(
            "{table} {first}{all}: {before} {verb} now {now}; the next release refuses the old \
             form, `penstock host config --migrate FILE` rewrites the file"
        )
    };
    upgrade(document.as_table_mut()).into_iter().map(told).collect()
}

/// Returns `text` with current keys, and keeps its comments and order. If `text` is not TOML,
/// returns `text` unchanged.
pub(super) fn current(text: &str) -> String {
    changed(text, |root| drop(upgrade(root)))
}

/// Returns the text of a `[[port]]` with current keys. If `text` is not TOML, returns `text`
/// unchanged.
#[must_use]
pub fn current_port(text: &str) -> String {
    changed(text, |port| drop(upgrade_table("port", port)))
}

/// Parses `text` as TOML, applies `change`, and returns the changed text. Returns `text` unchanged
/// if `text` is not TOML.
fn changed(text: &str, change: impl FnOnce(&mut Table)) -> String {
    let Ok(mut document) = text.parse::<DocumentMut>() else { return text.to_owned() };
    change(document.as_table_mut());
    document.to_string()
}

/// Renames the old keys in all tables of a file. Returns a report about each old key that was
/// renamed.
pub(super) fn upgrade(root: &mut Table) -> Vec<Old> {
    let mut all: Vec<Old> = Vec::new();
    for kind in ["tenant", "port"] {
        let Some(tables) = root.get_mut(kind).and_then(Item::as_array_of_tables_mut) else {
            continue;
        };
        for table in tables.iter_mut() {
            let name = table.get("name").and_then(Item::as_str).unwrap_or_default().to_owned();
            for (before, now) in upgrade_table(kind, table) {
                match all.iter_mut().find(|old| (&old.before, &old.now) == (&before, &now)) {
                    Some(old) => old.count += 1,
                    None => all.push(Old {
                        table: kind,
                        before,
                        now,
                        count: 1,
                        first: format!("{name:?}"),
                    }),
                }
            }
        }
    }
    all
}

/// Replaces the old keys in one table, `table`, by current keys. The argument `kind` is the kind of
/// the table, such as `port`. Returns the old and the current name of each renamed key.
pub(super) fn upgrade_table(kind: &str, table: &mut Table) -> Vec<(String, String)> {
    let mut done = Vec::new();
    for (_, before, now) in RENAMED.into_iter().filter(|(of, ..)| *of == kind) {
        if table.contains_key(before) && !table.contains_key(now) {
            rebuild(table, |key, item| {
                let key = if key.get() == before { named(&key, now) } else { key };
                Some((key, item))
            });
            done.push((format!("`{before}`"), format!("`{now}`")));
        }
    }
    if kind == "port" {
        done.extend(group(table));
    }
    done
}

/// Moves the keys of a port's attachment into the table of the attachment's type.
fn group(table: &mut Table) -> Option<(String, String)> {
    let named = table.get("type").and_then(Item::as_str)?;
    let kind = Attachment::TYPES.into_iter().find(|kind| *kind == named)?;
    if table.contains_key(kind) {
        return None;
    }
    let mut inner = Table::new();
    inner.set_dotted(true);
    // Comments above and behind `type`.
    let mut comments = String::new();
    let is_moved = |key: &Key| key.get() == "type" || ATTACHMENT.contains(&key.get());
    let mut moved = Vec::new();
    for (key, item) in entries(table) {
        if key.get() == "type" {
            comments = comments_of(&key, &item);
        } else if is_moved(&key) {
            moved.push((key, item));
        }
    }
    let about: Vec<_> = moved.iter().map(|(key, _)| format!("`{}`", key.get())).collect();
    let now = moved.iter().map(|(key, _)| format!("`{kind}.{}`", key.get()));
    let told = (
        [vec!["`type`".to_owned()], about].concat().join(", "),
        now.collect::<Vec<_>>().join(", "),
    );
    for (at, (mut key, item)) in moved.into_iter().enumerate() {
        if at == 0 && !comments.is_empty() {
            let own = key.leaf_decor().prefix().and_then(|it| it.as_str()).unwrap_or_default();
            let prefix = format!("{comments}{own}");
            key.leaf_decor_mut().set_prefix(prefix);
        }
        inner.insert_formatted(&key, item);
    }
    let mut inner = Some(inner);
    rebuild(table, |key, item| {
        if is_moved(&key) {
            return inner.take().map(|inner| (Key::new(kind), Item::Table(inner)));
        }
        Some((key, item))
    });
    Some(told)
}

/// Returns the comments above a key and after its value, as lines.
fn comments_of(key: &Key, item: &Item) -> String {
    let above = key.leaf_decor().prefix().and_then(|it| it.as_str()).unwrap_or_default();
    let behind = item.as_value().and_then(|value| value.decor().suffix()?.as_str());
    match behind.map(str::trim).filter(|behind| !behind.is_empty()) {
        Some(behind) => format!("{above}{behind}\n"),
        None => above.to_owned(),
    }
}

/// Returns a TOML key that has the name `name` and keeps the comments of `key`.
fn named(key: &Key, name: &str) -> Key {
    Key::new(name).with_leaf_decor(key.leaf_decor().clone())
}

fn entries(table: &Table) -> Vec<(Key, Item)> {
    let keys = table.iter().filter_map(|(name, _)| table.get_key_value(name));
    keys.map(|(key, item)| (key.clone(), item.clone())).collect()
}

/// Replaces each entry of a table by the result of `change`. The order stays.
fn rebuild(table: &mut Table, mut change: impl FnMut(Key, Item) -> Option<(Key, Item)>) {
    let entries = entries(table);
    table.clear();
    for (key, item) in entries {
        if let Some((key, item)) = change(key, item) {
            table.insert_formatted(&key, item);
        }
    }
}

/// Returns the current path in `table` of a key that a client wants to set, which may be an old
/// key. If the key belongs to the port's attachment, the path begins with the attachment's table,
/// as in `tap.mtu`.
pub(super) fn path(kind: &str, table: &Table, key: &str) -> String {
    if let Some((.., now)) = RENAMED.iter().find(|(of, before, _)| (*of, *before) == (kind, key)) {
        return (*now).to_owned();
    }
    let attached = Attachment::TYPES.into_iter().find(|of| table.contains_key(of));
    match attached {
        Some(of) if kind == "port" && ATTACHMENT.contains(&key) => format!("{of}.{key}"),
        _ => key.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    const OLD: &str = r#"# my host
[host]
name = "h"

[[tenant]]
name = "red"
weight = 3 # thrice

# the first
[[port]] # a machine
name = "vm1"
# how
type = "vhost-user" # virtio
tenant = "red"
# where
socket = "/run/vm1.sock" # here
queues = 2
weight = 5
share = 7 # of red's

[[port]]
name = "t1"
type = "tap"
tenant = "red"
interface = "t1"
"#;

    const NEW: &str = r#"# my host
[host]
name = "h"

[[tenant]]
name = "red"
uplink_weight = 3 # thrice

# the first
[[port]] # a machine
name = "vm1"
# how
# virtio
# where
vhost-user.socket = "/run/vm1.sock" # here
vhost-user.queues = 2
tenant = "red"
cycle_weight = 5
uplink_share = 7 # of red's

[[port]]
name = "t1"
tap.interface = "t1"
tenant = "red"
"#;

    #[test]
    fn an_old_file_becomes_a_new_one_with_its_comments() {
        assert_eq!(current(OLD), NEW);
        assert_eq!(current(NEW), NEW);
        assert_eq!(parse(OLD, "").unwrap(), parse(NEW, "").unwrap());
        assert!(outdated(NEW).is_empty());
    }

    #[test]
    fn what_is_old_is_said_once_a_kind() {
        let said = outdated(OLD).join("\n");
        assert!(said.contains("tenant \"red\": `weight` is now `uplink_weight`;"), "{said}");
        assert!(said.contains("port \"vm1\": `weight` is now `cycle_weight`;"), "{said}");
        assert!(
            said.contains(
                "port \"vm1\": `type`, `socket`, `queues` are now `vhost-user.socket`, \
                 `vhost-user.queues`;"
            ),
            "{said}"
        );
        let twice = OLD.replace("\"h\"\n", "\"h\"\n\n[[tenant]]\nname = \"blue\"\nweight = 2\n");
        let said = outdated(&twice).join("\n");
        assert!(said.contains("tenant \"blue\" and 1 more: `weight`"), "{said}");
    }

    #[test]
    fn a_mistake_in_an_old_file_has_its_place() {
        for (right, wrong, place) in
            [("queues = 2", "queues = 9", (17, 10)), ("share = 7", "share = 0", (19, 9))]
        {
            let errors = parse(&OLD.replace(right, wrong), "f").unwrap_err().0;
            let places: Vec<_> = errors.iter().map(|error| (error.line, error.column)).collect();
            assert_eq!(places, [place], "{errors:?}");
        }
    }

    #[test]
    fn old_and_new_together_are_refused() {
        let both = NEW.replace("cycle_weight = 5", "cycle_weight = 5\nweight = 5");
        let errors = parse(&both, "f").unwrap_err().to_string();
        assert!(errors.contains("unknown key `weight`"), "{errors}");
    }
}
