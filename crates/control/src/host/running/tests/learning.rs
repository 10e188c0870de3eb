//! Tests that the cost model's learner does not hold up functions that read the host's state.

use super::*;

#[test]
fn whoever_reads_the_state_does_not_wait_for_the_learner_to_read_all_counters() {
    let (_model, _file, host, fake) = sold("readers");
    let host = Arc::new(host);
    host.tick(Nanos::from_secs(1));
    lock(&fake.0).host = Arc::downgrade(&host);
    host.tick(Nanos::from_secs(2));
    // The learner asks for the rate of the TSC together with the counters.
    assert_eq!(core::mem::take(&mut lock(&fake.0).locked), [false]);
    assert_eq!(host.learning().len(), 1, "the learner has a port");
}
