//! Text as HTML: everything that comes from a file or from a result goes through [`text`] or [`attribute`].

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// As text of an element.
pub fn text(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// As the value of an attribute in double quotes.
pub fn attribute(words: &str) -> String {
    text(words).replace('"', "&quot;").replace('\'', "&#39;")
}

/// As text, with what stands between backquotes as code.
pub fn prose(words: &str) -> String {
    let part = |(at, part): (usize, &str)| match at % 2 {
        1 => format!("<code>{}</code>", text(part)),
        _ => text(part),
    };
    words.split('`').enumerate().map(part).collect()
}

/// What of a URL's signs stays as it is, being often in our paths and files.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b',');

/// As a part of a URL, by RFC 3986.
pub fn in_url(bytes: &[u8]) -> String {
    percent_encode(bytes, KEPT).to_string()
}

/// A link's target that holds a file of its own.
pub fn data_link(media: &str, content: &str) -> String {
    format!("data:{media};charset=utf-8,{}", in_url(content.as_bytes()))
}

/// A table whose columns the script sorts; it scrolls in a box of its own. `cells` are HTML already.
pub fn table(titles: &[String], rows: &[Vec<String>]) -> String {
    let row = |cells: &Vec<String>| {
        let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        format!("<tr>{cells}</tr>\n")
    };
    table_of("sortable", titles, &rows.iter().map(row).collect::<String>())
}

/// A table of a class of its own, whose `rows` are HTML already.
pub fn table_of(class: &str, titles: &[impl AsRef<str>], rows: &str) -> String {
    let head: String =
        titles.iter().map(|title| format!("<th scope=\"col\">{}</th>", title.as_ref())).collect();
    format!(
        "<div class=\"wide\" tabindex=\"0\"><table class=\"{class}\"><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_in_html_is_escaped() {
        assert_eq!(text("a<b> & \"c\""), "a&lt;b&gt; &amp; \"c\"");
        assert_eq!(attribute("\"'<"), "&quot;&#39;&lt;");
        assert_eq!(prose("run `a < b` now"), "run <code>a &lt; b</code> now");
        assert_eq!(data_link("text/csv", "a,\"<\n%"), "data:text/csv;charset=utf-8,a,%22%3C%0A%25");
    }
}
