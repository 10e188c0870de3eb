//! [`penstock_fuzz::vhost_session`] under libFuzzer: `scripts/fuzz.sh vhost_session`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::vhost_session::run(data));
