//! Limits the number of connections for each certificate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// SHA-256 fingerprint of a certificate.
pub(super) type Key = [u8; 32];

/// Number of open connections of each certificate that has open connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(Arc<Mutex<HashMap<Key, usize>>>);

/// Slot for one connection with a certificate. Dropping the [`CertificatePlace`] frees the slot.
#[derive(Debug)]
pub(super) struct CertificatePlace {
    of: Places,
    key: Key,
}

/// Result of [`Places::take`] for a new connection.
#[derive(Debug)]
pub(super) enum Admission {
    /// The connection is within the limit of its certificate.
    Fits(CertificatePlace),
    /// The connection exceeds the limit of its certificate, so the server answers only with an
    /// error.
    Crowded(CertificatePlace),
    /// The certificate already has twice its maximum number of connections. The listener must close
    /// the connection.
    Full,
}

impl Places {
    /// Counts a new connection with certificate `key`. The listener admits up to `limit`
    /// connections with a certificate. Up to `limit` further connections with the same certificate
    /// only get an error.
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
