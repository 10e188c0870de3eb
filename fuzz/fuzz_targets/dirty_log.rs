//! [`penstock_fuzz::dirty_log`] under libFuzzer: `scripts/fuzz.sh dirty_log`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::dirty_log::run(data));
