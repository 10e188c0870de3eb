//! Defines the limits that are common to all stores. If one kind of store accepts a transaction,
//! all kinds accept the transaction.
//!
//! # Source
//!
//! The limits of transactions follow etcd's defaults, which are 128 for `--max-txn-ops` and 1.5 MiB
//! for `--max-request-bytes`.

use std::collections::HashSet;

use super::contract::{Compare, StoreError, Transaction, Write};

/// Maximum length of a key in bytes.
pub const KEY_BYTES_MAX: usize = 1_024;
/// Maximum length of a value in bytes.
pub const VALUE_BYTES_MAX: usize = 1_000_000;
/// A transaction has at most this number of conditions, and at most this number of writes.
pub const OPERATIONS_MAX: usize = 128;
/// Maximum size of a transaction in bytes. The size of a transaction is the sum of the lengths of
/// its values, written keys and compared keys. Compared keys count twice, because etcd returns the
/// compared keys if a condition fails. The size limit of a transaction is 1.5 MiB minus the
/// overhead of messages.
pub const TRANSACTION_BYTES_MAX: usize = 1_500_000;

/// Checks a transaction against the limits of stores.
///
/// # Errors
/// - [`StoreError::TooLarge`]: the transaction exceeds a limit.
/// - [`StoreError::Invalid`]: a key is empty, or the transaction writes a key twice.
pub fn check(transaction: &Transaction) -> Result<(), StoreError> {
    for (what, size) in [
        ("comparisons of a transaction", transaction.compare.len()),
        ("writes of a transaction", transaction.writes.len()),
    ] {
        at_most(what, size, OPERATIONS_MAX, "split it")?;
    }
    let mut total = 0;
    for compare in &transaction.compare {
        let (Compare::Absent(key) | Compare::Modified(key, _) | Compare::Created(key, _)) = compare;
        total += 2 * key_length(key)?;
    }
    let mut seen = HashSet::new();
    for write in &transaction.writes {
        let (Write::Put { key, .. } | Write::Delete(key)) = write;
        total += key_length(key)?;
        if !seen.insert(key) {
            return Err(StoreError::Invalid(format!("key {key} is written twice; write it once")));
        }
        if let Write::Put { value, .. } = write {
            let what = format!("the value of {key}");
            at_most(&what, value.len(), VALUE_BYTES_MAX, "divide it among keys")?;
            total += value.len();
        }
    }
    at_most("a transaction's bytes", total, TRANSACTION_BYTES_MAX, "split it")
}

fn key_length(key: &str) -> Result<usize, StoreError> {
    if key.is_empty() {
        return Err(StoreError::Invalid(
            "a key is empty; write a name of at least 1 byte".to_owned(),
        ));
    }
    at_most("a key's length", key.len(), KEY_BYTES_MAX, "use a shorter key")?;
    Ok(key.len())
}

fn at_most(what: &str, size: usize, most: usize, remedy: &'static str) -> Result<(), StoreError> {
    if size <= most {
        return Ok(());
    }
    Err(StoreError::TooLarge { what: what.to_owned(), size, most, remedy })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, length: usize) -> Write {
        Write::Put { key: key.to_owned(), value: vec![0; length], lease: None }
    }

    fn of(writes: Vec<Write>) -> Result<(), StoreError> {
        check(&Transaction { compare: Vec::new(), writes })
    }

    #[test]
    fn a_transaction_at_the_limit_is_accepted_and_one_above_is_refused() {
        assert_eq!(of(vec![put("a", VALUE_BYTES_MAX)]), Ok(()));
        let error = of(vec![put("a", VALUE_BYTES_MAX + 1)]).unwrap_err().to_string();
        assert!(error.contains("the value of a: 1000001 is above the limit of 1000000"), "{error}");
        let many = |n: usize| (0..n).map(|i| put(&i.to_string(), 1)).collect::<Vec<_>>();
        assert_eq!(of(many(OPERATIONS_MAX)), Ok(()));
        assert!(matches!(of(many(OPERATIONS_MAX + 1)), Err(StoreError::TooLarge { .. })));
        let half = TRANSACTION_BYTES_MAX / 2 - 1;
        assert_eq!(of(vec![put("a", half), put("b", half)]), Ok(()));
        let more = of(vec![put("a", half), put("b", half), put("c", 1)]);
        assert!(matches!(more, Err(StoreError::TooLarge { size: 1_500_002, .. })), "{more:?}");
    }

    #[test]
    fn a_key_is_neither_empty_nor_long_nor_written_twice() {
        assert!(matches!(of(vec![put("", 1)]), Err(StoreError::Invalid(_))));
        assert!(matches!(of(vec![put(&"k".repeat(1_025), 1)]), Err(StoreError::TooLarge { .. })));
        let twice = of(vec![put("k", 1), Write::Delete("k".to_owned())]);
        assert!(
            matches!(twice, Err(StoreError::Invalid(what)) if what.contains("is written twice"))
        );
    }
}
