//! Where intent is kept: tenants, placements, the term; never samples.
//!
//! **Problem.** A controller ends, and its successor must know what was sold and where it stands;
//! of several controllers one leads, and one that was deposed must not write. **Rule.** One trait
//! over whatever holds keys and values with revisions: get, list, a transaction that compares
//! before it writes, watch, leases, and a campaign. A leader's writes compare its own leadership
//! first ([`Leadership::fence`]), so what a deposed one writes is refused by the store itself.
//!
//! **Quantities.** A revision counts the store's changes, one for each transaction that wrote. Keys
//! are text with `/`; [`limits`] bounds keys, values and transactions alike for every store, so
//! that what one takes the other takes too.
//!
//! | Store | Where | Who |
//! |---|---|---|
//! | [`Embedded`] | one file | one controller |
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
