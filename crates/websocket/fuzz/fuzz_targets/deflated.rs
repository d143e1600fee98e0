#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| websocket_fuzz::deflated(input));
