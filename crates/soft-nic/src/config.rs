//! Configuration of one NIC process: what `nic.toml` and the launcher's options say.
