//! The store of intent. It has tenants, placements and the term, but no samples.
//!
//! # Problem
//!
//! When a controller ends, its successor must know the sold tenants and their placements. Of
//! several controllers one leads, and a deposed leader must not write.
//!
//! # Approach
//!
//! One trait covers any key-value store with revisions. The trait has get, list, transactions with
//! conditions, watch, leases and elections. A leader's writes check its leadership
//! ([`Leadership::fence`]), so the store refuses writes of a deposed leader.
//!
//! A revision counts the store's changes. Each transaction that writes is one change. Keys are text
//! with `/`. [`limits`] bounds keys, values and transactions in the same way for every store.
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
