//! Makes the plotting library's output smaller, and adapts it to the reader's light or dark scheme.

use plotters::style::RGBColor;

pub(crate) const FONT: &str = "sans-serif";
// Each of these colours has a single use: the style sheet below selects elements by it.
pub(crate) const PAPER: RGBColor = RGBColor(254, 254, 254);
pub(crate) const INK: RGBColor = RGBColor(34, 34, 35);
pub(crate) const GRID: RGBColor = RGBColor(221, 221, 222);

/// Exchanges paper, ink and grid colours in the reader's dark scheme. In print, and where style sheets are
/// not supported, the paper stays bright.
pub(crate) const STYLE: &str = "@media screen and (prefers-color-scheme:dark){\
    [fill=\"#FEFEFE\"]{fill:#14171c}\
    [fill=\"#222223\"]{fill:#d8dce2}[stroke=\"#222223\"]{stroke:#d8dce2}\
    [stroke=\"#DDDDDE\"]{stroke:#3a3f48}}";

/// Rewrites a drawing, element by element; text in it has the ink's colour and the size of labels by default.
/// On a page, the page's style sheet applies.
pub(crate) fn tidy(svg: &str) -> String {
    let mut out = String::with_capacity(svg.len() / 2);
    let mut path = Path::default();
    // The text of an element is on a separate line.
    let mut in_text = false;
    for line in svg.lines() {
        if in_text {
            out += line;
            in_text = !line.starts_with("</text>");
            if !in_text {
                out.push('\n');
            }
        } else if line.starts_with("<text") {
            // Texts and lines do not overlap, so a path may continue after a text.
            in_text = true;
            out += &shortened(line).replace(&format!(" font-size=\"{LABEL}\""), "").replace(INKED, "");
        } else if line.starts_with("<line") && line.contains("stroke=\"#FEFEFE\"") {
            // Lines between those of the grid are drawn in the paper's colour, since they cannot be turned off;
            // they are dropped.
        } else if let Some((style, steps)) = drawn(line) {
            path.add(style, &steps, &mut out);
        } else {
            path.finish(&mut out);
            if line.starts_with("<svg") {
                let root = format!("<svg font-family=\"sans-serif\" font-size=\"{LABEL}\"{INKED}");
                out += &line.replacen("<svg", &root, 1);
            } else {
                out += &shortened(line);
            }
            out.push('\n');
        }
    }
    path.finish(&mut out);
    out
}

/// A drawing as a separate file, with its style sheet.
pub(crate) fn alone(svg: &str) -> String {
    svg.replacen(">\n", &format!(">\n<style>{STYLE}</style>\n"), 1)
}

/// The library's output for the size of labels, and for the ink's colour.
const LABEL: &str = "9.7";
const INKED: &str = " fill=\"#222223\"";

/// Consecutive points and strokes of the same style form one path.
#[derive(Default)]
struct Path {
    style: String,
    steps: String,
}

impl Path {
    fn add(&mut self, style: String, steps: &str, out: &mut String) {
        if style != self.style {
            self.finish(out);
            self.style = style;
        }
        self.steps += steps;
    }

    fn finish(&mut self, out: &mut String) {
        if !self.steps.is_empty() {
            *out += &format!("<path fill=\"none\" {} d=\"{}\"/>\n", self.style, self.steps);
            self.steps.clear();
        }
    }
}

/// The style and the steps of a filled circle or an open line; `None` for everything else. A circle is a step
/// of length zero with a round end.
fn drawn(line: &str) -> Option<(String, String)> {
    if line.starts_with("<circle") {
        let (x, y, colour) = (attribute(line, "cx")?, attribute(line, "cy")?, attribute(line, "fill")?);
        let width = 2 * attribute(line, "r")?.parse::<u32>().ok()?;
        let style = format!("stroke=\"{colour}\" stroke-width=\"{width}\" stroke-linecap=\"round\"");
        return Some((style, format!("M{x},{y}h0")));
    }
    if line.starts_with("<line") {
        let [x1, y1, x2, y2] = ["x1", "y1", "x2", "y2"].map(|name| attribute(line, name));
        return Some((style(line)?, format!("M{},{}L{},{}", x1?, y1?, x2?, y2?)));
    }
    let line = line.strip_prefix("<polyline fill=\"none\"")?;
    let mut points = attribute(line, "points")?.split_ascii_whitespace();
    let first = points.next()?;
    let rest: String = points.filter(|point| *point != first).map(|point| format!("L{point}")).collect();
    let steps = if rest.is_empty() { String::new() } else { format!("M{first}{rest}") };
    Some((style(line)?, steps))
}

/// Colour and width of a line; the default width is one pixel.
fn style(line: &str) -> Option<String> {
    let (colour, width) = (attribute(line, "stroke")?, attribute(line, "stroke-width")?);
    let width = if width == "1" { String::new() } else { format!(" stroke-width=\"{width}\"") };
    Some(format!("stroke=\"{colour}\"{width}"))
}

fn attribute<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    let (_, rest) = line.split_once(&format!(" {name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

/// Drops default values, and shortens sizes.
fn shortened(line: &str) -> String {
    let mut line = line.replace(" opacity=\"1\"", "").replace(" stroke-width=\"1\"", "");
    line = line.replace(" font-family=\"sans-serif\"", "").replace(" stroke=\"none\"", "");
    line = line.replace(" text-anchor=\"start\"", "");
    if let Some(size) = attribute(&line, "font-size")
        && let Ok(number) = size.parse::<f64>()
    {
        line = line.replace(&format!("font-size=\"{size}\""), &format!("font-size=\"{number:.1}\""));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWING: &str = "<svg width=\"9\" xmlns=\"http://www.w3.org/2000/svg\">\n\
        <rect x=\"0\" opacity=\"1\" fill=\"#FEFEFE\" stroke=\"none\"/>\n\
        <line opacity=\"1\" stroke=\"#FEFEFE\" stroke-width=\"1\" x1=\"0\"/>\n\
        <line opacity=\"1\" stroke=\"#222223\" stroke-width=\"1\" x1=\"1\" y1=\"2\" x2=\"3\" y2=\"4\"/>\n\
        <text x=\"1\" font-family=\"sans-serif\" font-size=\"9.67741935483871\" opacity=\"1\" fill=\"#222223\">\n\
        a &amp; b\n</text>\n\
        <polyline fill=\"none\" opacity=\"1\" stroke=\"#222223\" stroke-width=\"1\" points=\"5,6 7,8 \"/>\n\
        <circle cx=\"1\" cy=\"2\" r=\"3\" opacity=\"1\" fill=\"#0072B2\" stroke=\"none\" stroke-width=\"1\"/>\n\
        <circle cx=\"4\" cy=\"5\" r=\"3\" opacity=\"1\" fill=\"#0072B2\" stroke=\"none\" stroke-width=\"1\"/>\n\
        <polyline fill=\"none\" opacity=\"1\" stroke=\"#0072B2\" stroke-width=\"2\" points=\"1,2 4,5 \"/>\n\
        <polyline fill=\"none\" opacity=\"1\" stroke=\"#0072B2\" stroke-width=\"2\" points=\"7,7 7,7 \"/>\n</svg>\n";

    #[test]
    fn a_drawing_stays_what_it_is_with_less() {
        let out = tidy(DRAWING);
        assert_eq!(
            out,
            "<svg font-family=\"sans-serif\" font-size=\"9.7\" fill=\"#222223\" width=\"9\" \
             xmlns=\"http://www.w3.org/2000/svg\">\n\
             <rect x=\"0\" fill=\"#FEFEFE\"/>\n\
             <text x=\"1\">a &amp; b</text>\n\
             <path fill=\"none\" stroke=\"#222223\" d=\"M1,2L3,4M5,6L7,8\"/>\n\
             <path fill=\"none\" stroke=\"#0072B2\" stroke-width=\"6\" stroke-linecap=\"round\" d=\"M1,2h0M4,5h0\"/>\n\
             <path fill=\"none\" stroke=\"#0072B2\" stroke-width=\"2\" d=\"M1,2L4,5\"/>\n</svg>\n"
        );
        assert_eq!(tidy(""), "");
        assert!(alone(&out).starts_with(&out[..out.find('\n').unwrap()]));
        assert!(alone(&out).contains(STYLE) && alone(&out).len() > out.len() + STYLE.len());
    }
}
