//! Converts the messages of etcd.

/// Code that the build generates from `proto/etcd/rpc.proto`.
#[allow(missing_docs, missing_debug_implementations, clippy::all, clippy::pedantic)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used, unreachable_pub)]
pub(super) mod pb {
    tonic::include_proto!("etcdserverpb");
}

use self::pb::compare::{CompareTarget, TargetUnion};
use self::pb::request_op::Request;
use super::super::contract::{Change, Compare, Entry, LeaseId, Revision, Write};

/// Returns the end of the range of keys that begin with `prefix`.
pub(super) fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // UTF-8 has no byte 255, so the last byte can always be incremented.
    match end.last_mut() {
        Some(last) => *last += 1,
        // This is etcd's notation for all keys.
        None => end.push(0),
    }
    end
}

/// Returns the start of the range of keys that begin with `prefix`.
pub(super) fn range_start(prefix: &str) -> Vec<u8> {
    if prefix.is_empty() { vec![0] } else { prefix.as_bytes().to_vec() }
}

/// Converts etcd's signed revisions, which are never negative.
pub(super) fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or(0))
}

pub(super) fn signed(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// Converts etcd's message for a key and its value to an [`Entry`]. Returns an error if the key is
/// not UTF-8, because only another program writes such a key.
pub(super) fn entry(kv: pb::KeyValue) -> Result<Entry, String> {
    Ok(Entry {
        key: key(kv.key)?,
        value: kv.value,
        created: revision(kv.create_revision),
        modified: revision(kv.mod_revision),
    })
}

fn key(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| {
        let bytes = error.as_bytes().escape_ascii();
        format!("the key {bytes} is not text, so another program wrote it; delete it")
    })
}

pub(super) fn change(event: pb::Event) -> Result<Change, String> {
    let put = event.r#type() == pb::event::EventType::Put;
    let kv = event.kv.ok_or("a change has no key")?;
    if put {
        return entry(kv).map(Change::Put);
    }
    Ok(Change::Deleted { revision: revision(kv.mod_revision), key: key(kv.key)? })
}

pub(super) fn compare(compare: &Compare) -> pb::Compare {
    let (key, target, union) = match compare {
        Compare::Absent(key) => (key, CompareTarget::Create, TargetUnion::CreateRevision(0)),
        Compare::Created(key, by) => {
            (key, CompareTarget::Create, TargetUnion::CreateRevision(signed(*by)))
        }
        Compare::Modified(key, by) => {
            (key, CompareTarget::Mod, TargetUnion::ModRevision(signed(*by)))
        }
    };
    pb::Compare {
        result: pb::compare::CompareResult::Equal.into(),
        target: target.into(),
        key: key.clone().into_bytes(),
        target_union: Some(union),
    }
}

/// Returns true if a condition of a transaction holds. `found` is the entry of the condition's key,
/// as returned by etcd.
pub(super) fn holds(compare: &Compare, found: Option<&pb::KeyValue>) -> bool {
    let (created, modified) = found.map_or((0, 0), |kv| (kv.create_revision, kv.mod_revision));
    match compare {
        Compare::Absent(_) => created == 0,
        Compare::Created(_, by) => created == signed(*by),
        Compare::Modified(_, by) => modified == signed(*by),
    }
}

pub(super) fn write(write: Write) -> pb::RequestOp {
    let request = match write {
        Write::Put { key, value, lease } => Request::RequestPut(pb::PutRequest {
            key: key.into_bytes(),
            value,
            lease: lease.map_or(0, |LeaseId(lease)| lease),
        }),
        Write::Delete(key) => {
            Request::RequestDeleteRange(pb::DeleteRangeRequest { key: key.into_bytes() })
        }
    };
    pb::RequestOp { request: Some(request) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_holds_what_begins_with_the_prefix_and_nothing_else() {
        let within = |prefix: &str, key: &str| {
            let (start, end) = (range_start(prefix), range_end(prefix));
            key.as_bytes() >= start.as_slice() && (end == [0] || key.as_bytes() < end.as_slice())
        };
        for prefix in ["", "t/", "tenant", "\u{10ffff}", "a\u{7f}"] {
            for key in
                ["a", "t/", "t/x", "t0", "tenant\u{10ffff}x", "tenanu", "\u{10ffff}", "a\u{7f}b"]
            {
                assert_eq!(within(prefix, key), key.starts_with(prefix), "{prefix:?} {key:?}");
            }
        }
    }
}
