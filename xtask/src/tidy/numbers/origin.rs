//! Places that figures come from: fields of committed JSON and TOML, and constants of the sources.

use serde_json::Value;

use super::formula;
use super::page::Page;
use super::quantity::{Quantity, Unit};
use crate::tidy::source;
use crate::workspace::Tree;

/// Words before the name of a constant.
const DEFINING: [&str; 4] = ["const", "constexpr", "static", "enum"];

/// Which of the numbers at a path counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberChoice {
    One,
    Least,
    Most,
}

/// The number at a place of a file: a path of keys in JSON and TOML, a constant's name elsewhere.
pub fn read(tree: &Tree, file: &str, place: &str, of: NumberChoice) -> Result<Quantity, String> {
    let text = tree.get(file).ok_or_else(|| format!("{file} is not there"))?;
    let unreadable = |error: String| format!("{file} cannot be read: {error}");
    let ending = file.rsplit('.').next().unwrap_or_default();
    match ending {
        "json" => at(&serde_json::from_str(text).map_err(|error| unreadable(error.to_string()))?, place, of),
        "toml" => at(&toml::from_str(text).map_err(|error| unreadable(error.to_string()))?, place, of),
        _ => constant(tree, file, place),
    }
    .map_err(|why| format!("{file}: {why}"))
}

/// The number at a path such as `/entries/label=emulated/rows/series=cpu-shim&x=64/values/post_ns/0`: an
/// object's key, an array's index, or the elements for which all conditions hold. The last key says the unit.
fn at(whole: &Value, path: &str, of: NumberChoice) -> Result<Quantity, String> {
    let (mut here, mut name) = (vec![whole], "");
    for part in path.trim_start_matches('/').split('/') {
        let key = part.replace("~1", "/").replace("~0", "~");
        here = here.into_iter().map(|one| step(one, &key, of)).collect::<Result<Vec<_>, _>>()?.concat();
        // An index says nothing of a unit.
        if !here.iter().all(|one| one.is_number()) || part.parse::<usize>().is_err() {
            name = part;
        }
    }
    // An option of a command is a string; its number has no unit.
    if let [Value::String(text)] = here[..] {
        return text.parse().map_or_else(|_| said(text), |value| Ok(Quantity::plain(value)));
    }
    let numbers: Option<Vec<f64>> = here.into_iter().map(Value::as_f64).collect();
    let mut numbers = numbers.ok_or_else(|| format!("{path} is no number"))?;
    numbers.sort_by(f64::total_cmp);
    let value = if of == NumberChoice::Most { numbers.last() } else { numbers.first() };
    let plain = Quantity::plain(*value.ok_or_else(|| format!("{path} holds for nothing"))?);
    Unit::of_name(name).map_or(Ok(plain), |unit| plain.in_unit(unit))
}

/// The only figure of a sentence, as a claim of the paper has it.
fn said(text: &str) -> Result<Quantity, String> {
    let page = Page::read(text);
    let figures: Vec<_> = page.figures.iter().filter_map(|one| Some((one.number, one.unit?))).collect();
    let [(number, unit)] = figures[..] else {
        return Err(format!("«{text}» has {} figures with a unit, not one", figures.len()));
    };
    Quantity::plain(number.replace(',', "").parse().map_err(|_| "no number")?).in_unit(unit)
}

/// The element of a key; of conditions the only one, or where several count all.
fn step<'a>(here: &'a Value, key: &str, of: NumberChoice) -> Result<Vec<&'a Value>, String> {
    let (Value::Array(all), true) = (here, key.contains('=')) else {
        return inside(here, key).map(|one| vec![one]).ok_or_else(|| format!("there is no {key}"));
    };
    let conditions: Vec<(&str, &str)> = key.split('&').filter_map(|one| one.split_once('=')).collect();
    let holds = |one: &&Value| conditions.iter().all(|(field, value)| is(one, field, value));
    let found: Vec<&Value> = all.iter().filter(holds).collect();
    match found.len() {
        0 => Err(format!("{key} holds for none of {} elements", all.len())),
        1 => Ok(found),
        _ if of != NumberChoice::One => Ok(found),
        count => Err(format!("{key} holds for {count} of {} elements, not for one", all.len())),
    }
}

/// A key of an object, or an index of an array.
fn inside<'a>(here: &'a Value, key: &str) -> Option<&'a Value> {
    match here {
        Value::Array(all) => all.get(key.parse::<usize>().ok()?),
        _ => here.get(key),
    }
}

/// Whether a field, or one of a field (`provenance.gpu_device`), is a value; nothing is one that is absent.
fn is(of: &Value, field: &str, value: &str) -> bool {
    match field.split('.').try_fold(of, inside) {
        None | Some(Value::Null) => value.is_empty(),
        Some(Value::String(text)) => text == value,
        Some(Value::Number(number)) => value.parse().ok() == number.as_f64(),
        Some(other) => other == value,
    }
}

/// What a constant of a source file is, in the unit that its name says.
fn constant(tree: &Tree, file: &str, name: &str) -> Result<Quantity, String> {
    let value = written(tree, file, name)?;
    match (value.kind, Unit::of_name(name)) {
        (None, Some(unit)) => value.in_unit(unit),
        _ => Ok(value),
    }
}

/// A constant's value for the compiler, with other constants worked in: those of the file, and of a named
/// module (`delay::MAX_BYTES`, `mlx5_device::carrier::MAX_DELAY_NS`).
fn written(tree: &Tree, file: &str, name: &str) -> Result<Quantity, String> {
    let text = source::without_tests(file, tree.get(file).unwrap_or_default());
    let found = definitions(text, name);
    let [formula] = found[..] else {
        return Err(format!("{name} is defined there {} times, not once", found.len()));
    };
    let look_up = |other: &str| {
        let (modules, last) = other.rsplit_once("::").unwrap_or(("", other));
        match modules.rsplit("::").next().unwrap_or_default() {
            // A constant that is made of itself is none that compiles.
            "" | "Self" | "self" | "super" if last == name => Err("it is made of itself".into()),
            "" | "Self" | "self" | "super" => written(tree, file, last),
            module => {
                let (first, _) = modules.split_once("::").unwrap_or_default();
                let other = format!("crates/{}/src/", first.replace('_', "-"));
                let own = file.split_inclusive("/src/").next().unwrap_or_default();
                let package = if tree.holds(other.trim_end_matches('/')) { &other } else { own };
                written(tree, module_of(tree, package, module)?, last)
            }
        }
    };
    formula::evaluate(formula, &look_up).map_err(|why| format!("{name} = {formula}: {why}"))
}

/// The file of a module of a package.
fn module_of<'a>(tree: &'a Tree, package: &str, module: &str) -> Result<&'a str, String> {
    let is_module = |path: &str| {
        let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
        path.starts_with(package) && path.rsplit('/').next() == Some(module)
    };
    let found: Vec<&str> = tree.rust().map(|(path, _)| path).filter(|path| is_module(path)).collect();
    let [one] = found[..] else {
        return Err(format!("{} modules are called {module}, not one", found.len()));
    };
    Ok(one)
}

/// Right sides of a name's definitions: `const NAME: TYPE = …;` of Rust, `NAME = …` of C and CUDA, `#define
/// NAME …`, and a number for a field (`NAME: 1`, `NAME: TYPE = 1`).
fn definitions<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.match_indices(name).filter_map(|(at, _)| right_side(text, at, name.len())).collect()
}

/// What the name at a place is defined as there, if it is.
fn right_side(text: &str, at: usize, length: usize) -> Option<&str> {
    let (before, after) = (text[..at].rsplit('\n').next()?, &text[at + length..]);
    let is_part = before.ends_with(source::is_name) || after.starts_with(source::is_name);
    if is_part || before.contains(['=', '"']) {
        return None;
    }
    let words: Vec<&str> = before.split_whitespace().collect();
    let side = match words[..] {
        ["#define"] => until(after, "/\n"),
        [] => {
            let field = after.strip_prefix(':')?;
            let number = until(field, ",;\n").rsplit('=').next()?.trim();
            number.starts_with(|c: char| c.is_ascii_digit()).then_some(number)?
        }
        [first, ..] if !first.starts_with("//") && words.iter().any(|word| DEFINING.contains(word)) => {
            let (_, side) = after.split_once('=').filter(|(kind, _)| !kind.contains([';', ',', '(', '{']))?;
            until(side, ";,}")
        }
        _ => return None,
    };
    Some(side.trim())
}

/// The beginning of a text, up to one of these characters.
fn until<'a>(text: &'a str, ends: &str) -> &'a str {
    text.split(|c| ends.contains(c)).next().unwrap_or_default()
}
