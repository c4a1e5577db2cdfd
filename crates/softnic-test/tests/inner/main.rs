//! Tests with the attribute, which the package's own tests build and start one by one; some fail by design.

mod hello;

#[softnic_test::test(link_layer = "roce", devices = 2)]
fn options_are_keywords() -> Result<(), verbs::Error> {
    assert_eq!(verbs::devices()?.len(), 2);
    Ok(())
}

#[softnic_test::test]
fn fails() {
    println!("seen before it failed");
    assert_eq!(verbs::devices().map_or(0, |devices| devices.len()), 77);
}

#[softnic_test::test]
fn crashes() {
    std::process::abort();
}
