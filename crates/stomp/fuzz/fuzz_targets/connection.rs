#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| stomp_fuzz::connection(input));
