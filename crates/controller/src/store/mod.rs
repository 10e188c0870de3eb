//! Stores the controller's intended state: tenants, placements, bindings and the election. The
//! store does not contain measured usage of tenants.
//!
//! # Problem
//!
//! When a controller ends, its successor must know the tenants, their guarantees and their
//! placements. If a fabric has several controllers, one controller leads, and a former leader must
//! not write.
//!
//! # Approach
//!
//! The trait [`Store`] is the controller's interface to a key-value store with revisions. The trait
//! [`Store`] has methods to get, list and watch keys, to commit transactions with conditions, and
//! for leases and elections. Each write of a leader checks the leadership ([`Leadership::fence`]),
//! so the store refuses the writes of a former leader.
//!
//! The revision of a store counts the store's changes. A transaction that changes a key increases
//! the revision by one. Keys are paths with `/` as the separator. The limits on keys, values and
//! transactions in [`limits`] apply to all kinds of stores.
//!
//! | Store | Location | Controllers |
//! |---|---|---|
//! | [`Embedded`] | one file | one |
//! | [`Etcd`] | an etcd cluster | several, of which one leads |

mod campaign;
mod contract;
pub mod embedded;
pub mod etcd;
pub mod limits;

pub use campaign::leader;
pub use contract::{
    Change, Compare, Entry, Leadership, LeaseId, Listing, Revision, Store, StoreError, Transaction,
    Write,
};
pub use embedded::Embedded;
pub use etcd::{Etcd, EtcdConfig, EtcdTls};
