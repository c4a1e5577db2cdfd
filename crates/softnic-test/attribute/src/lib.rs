//! `#[softnic_test::test]`: puts the second run of a test before its body.
//!
//! Reads a function's tokens as far as needed: name, no arguments, a body. So it needs no parser of Rust.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Makes a function a test that runs on a software NIC, see `softnic_test`. `softnic run`'s options are
/// keywords with literal values: `#[softnic_test::test(model = "cx7", rate_gbps = 10, pump)]`.
#[proc_macro_attribute]
pub fn test(options: TokenStream, function: TokenStream) -> TokenStream {
    expanded(options, function).unwrap_or_else(|why| tokens(&format!("::core::compile_error!({why:?});")))
}

fn tokens(text: &str) -> TokenStream {
    text.parse().expect("a text of this crate, with strings that are escaped")
}

fn expanded(options: TokenStream, function: TokenStream) -> Result<TokenStream, String> {
    let options = words(options)?;
    let mut function: Vec<TokenTree> = function.into_iter().collect();
    let not_a_test = || "softnic_test::test stands before a function without arguments".to_owned();
    let at = function.iter().position(|token| is(token, "fn")).ok_or_else(not_a_test)?;
    let (before, after) = function.split_at(at);
    let [_, TokenTree::Ident(name), TokenTree::Group(arguments), ..] = after else {
        return Err(not_a_test());
    };
    if arguments.delimiter() != Delimiter::Parenthesis || !arguments.stream().is_empty() {
        return Err(not_a_test());
    }
    if before.iter().any(|token| is(token, "async")) {
        return Err("softnic_test::test takes no async function: start the runtime in the test".to_owned());
    }
    let is_to_panic = |token: &TokenTree| matches!(token, TokenTree::Group(it) if it.stream().into_iter().any(|t| is(&t, "should_panic")));
    if before.iter().any(is_to_panic) {
        return Err("softnic_test::test takes no should_panic: catch the panic in the test".to_owned());
    }
    let again = format!(
        "if ::softnic_test::ran(::core::concat!(::core::module_path!(), \"::\", {:?}), &[{options}]) {{ \
         return ::softnic_test::Passed::passed(); }}",
        name.to_string()
    );
    let Some(TokenTree::Group(body)) = function.pop().filter(is_body) else {
        return Err(not_a_test());
    };
    let whole = tokens(&again).into_iter().chain([TokenTree::Group(body)]).collect();
    function.push(TokenTree::Group(Group::new(Delimiter::Brace, whole)));
    Ok(tokens("#[::core::prelude::v1::test]").into_iter().chain(function).collect())
}

fn is(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(it) if it.to_string() == word)
}

fn is_body(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(it) if it.delimiter() == Delimiter::Brace)
}

/// Keywords as words of a command line, each a string of Rust: `model = "cx7"` as `"--model", "cx7",`.
fn words(options: TokenStream) -> Result<String, String> {
    let mut words = String::new();
    let all: Vec<TokenTree> = options.into_iter().collect();
    for option in all.split(|token| matches!(token, TokenTree::Punct(it) if it.as_char() == ',')) {
        let (name, value) = match option {
            [] => continue,
            [TokenTree::Ident(name)] => (name, None),
            [TokenTree::Ident(name), TokenTree::Punct(equals), TokenTree::Literal(value)]
                if equals.as_char() == '=' =>
            {
                (name, Some(value.to_string()))
            }
            _ => {
                return Err(
                    "options of softnic run are words, or words = literals: model = \"cx7\", pump".to_owned()
                );
            }
        };
        words += &format!("{:?}, ", format!("--{}", name.to_string().replace('_', "-")));
        if let Some(value) = value {
            words += &format!("::core::concat!({value}), ");
        }
    }
    Ok(words)
}
