//! Counts the places of connections for each certificate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Fingerprint of the certificate to which a place belongs.
pub(super) type Key = [u8; 32];

/// Number of places in use, for each certificate.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(Arc<Mutex<HashMap<Key, usize>>>);

/// A place in use. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct CertificatePlace {
    of: Places,
    key: Key,
}

/// Result of [`Places::take`].
#[derive(Debug)]
pub(super) enum Admission {
    /// The place is within the limit.
    Fits(CertificatePlace),
    /// The place exceeds the limit, and only an error may be sent.
    Crowded(CertificatePlace),
    /// There is no place at all.
    Full,
}

impl Places {
    /// Takes one of `limit` places. If all places are in use, takes one of `limit` further places
    /// for connections that only get an error.
    pub(super) fn take(&self, key: Key, limit: usize) -> Admission {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.entry(key).or_default();
        if *count >= limit.saturating_mul(2).max(1) {
            return Admission::Full;
        }
        *count += 1;
        let fits = *count <= limit;
        let place = CertificatePlace { of: self.clone(), key };
        if fits { Admission::Fits(place) } else { Admission::Crowded(place) }
    }
}

impl Drop for CertificatePlace {
    fn drop(&mut self) {
        let mut held = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_key_and_free_again() {
        let (places, a, b) = (Places::default(), [1; 32], [2; 32]);
        let first = places.take(a, 1);
        assert!(matches!(first, Admission::Fits(_)));
        let second = places.take(a, 1);
        assert!(matches!(second, Admission::Crowded(_)));
        assert!(matches!(places.take(a, 1), Admission::Full));
        assert!(matches!(places.take(b, 1), Admission::Fits(_)), "another's are its own");
        drop((first, second));
        assert!(places.0.lock().unwrap().is_empty(), "nothing is kept of who is gone");
        assert!(matches!(places.take(a, 1), Admission::Fits(_)));
    }
}
