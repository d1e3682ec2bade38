"""Readers: one function per source form, each yields (document id, plain text).

Paragraphs are separated by a blank line, lines inside a paragraph are joined.
"""

import gzip
import html
import json
import re
import struct
import zlib
from pathlib import Path

from lxml import etree
from lxml import html as lxml_html

_SKIP = {"script", "style", "pre", "table", "nav", "header", "footer", "head", "form", "button",
         "svg", "math", "code-block", "aside", "textarea", "select", "noscript", "sup"}
_BLOCK = {"p", "div", "li", "dd", "dt", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "section",
          "article", "main", "body", "ul", "ol", "dl", "br", "hr", "td", "tr", "figure", "center"}
_BAD_CLASS = re.compile(r"navheader|navfooter|sphinxsidebar|related|footer|toc\b|sidebar|breadcrumb|"
                        r"headerlink|highlight|navigation|navset|menu|searchbar|hnd\b|toolbar|signature")


def _text_file(path):
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _element_paragraphs(root):
    """Text of the block elements below root, one string per paragraph."""
    out, parts = [], []

    def flush():
        text = " ".join("".join(parts).split())
        if text:
            out.append(text)
        parts.clear()

    def walk(node):
        if not isinstance(node.tag, str):
            return
        tag = etree.QName(node).localname.lower()
        if tag in _SKIP or _BAD_CLASS.search(f"{node.get('class', '')} {node.get('id', '')}"):
            if tag in ("pre", "table"):
                flush()
            return
        block = tag in _BLOCK
        if block:
            flush()
        if node.text:
            parts.append(node.text)
        for child in node:
            walk(child)
            if child.tail:
                parts.append(child.tail)
        if block:
            flush()

    walk(root)
    flush()
    return out


def html_doc(path):
    try:
        root = lxml_html.document_fromstring(_text_file(path).encode("utf-8"),
                                             parser=lxml_html.HTMLParser(encoding="utf-8"))
    except (etree.ParserError, ValueError):
        return
    body = root.find("body")
    yield path.name, "\n\n".join(_element_paragraphs(root if body is None else body))


def mallard(path):
    root = etree.fromstring(path.read_bytes(), etree.XMLParser(recover=True))
    out = []
    for node in root.iter():
        if not isinstance(node.tag, str):
            continue
        tag = etree.QName(node).localname
        parent = etree.QName(node.getparent()).localname if node.getparent() is not None else ""
        if (tag == "title" and parent in ("page", "section")) or (tag == "p" and parent != "info"):
            out.append(" ".join("".join(node.itertext()).split()))
    yield path.name, "\n\n".join(out)


def plain(path):
    text = _text_file(path).replace("\r\n", "\n")
    paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", text)]
    yield path.name, "\n\n".join(p for p in paragraphs if p)


def r_strings(path):
    """Character vectors of an R lazy-load database (zlib blocks of XDR serialised objects)."""
    data, pos, book = path.read_bytes(), 0, 0
    while pos + 4 < len(data):
        stream = zlib.decompressobj()
        raw = stream.decompress(data[pos + 4:])
        pos = len(data) - len(stream.unused_data)
        lines, at = [], 0
        while True:
            # A CHARSXP: flags (low byte 9), length, bytes.
            at = raw.find(b"\x00\x09", at)
            if at < 0:
                break
            (size,) = struct.unpack(">i", raw[at + 2:at + 6]) if at + 6 <= len(raw) else (-1,)
            if 0 <= size < 2000 and at + 6 + size <= len(raw):
                lines.append(raw[at + 6:at + 6 + size].decode("utf-8", "replace"))
                at += 6 + size
            else:
                at += 2
        if len(lines) > 1000:
            paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", "\n".join(lines))]
            book += 1
            yield f"book{book}", "\n\n".join(p for p in paragraphs if p)


def sword(path):
    """A compressed SWORD module: an index of (offset, size, plain size) and zlib blocks."""
    index = path.with_suffix(path.suffix[:-1] + "s").read_bytes()
    data = path.read_bytes()
    for number in range(len(index) // 12):
        offset, size, _ = struct.unpack("<III", index[12 * number:12 * number + 12])
        if size == 0:
            continue
        try:
            raw = zlib.decompress(data[offset:offset + size])
        except zlib.error:
            continue
        text = raw.decode("utf-8", "replace").replace("\x00", "\n")
        text = re.sub(r"<(note|RF)\b.*?</?(note|Rf)>|<RF>.*?<Rf>", "", text, flags=re.S)
        text = re.sub(r"<(/?p|/?lb|br|/?div|/?lg|/?l|milestone|/?title|CM|CL)\b[^>]*>", "\n\n", text)
        text = html.unescape(re.sub(r"<[^>]*>", "", text))
        paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", text)]
        yield f"{path.stem}{number}", "\n\n".join(p for p in paragraphs if p)


def wesnoth(path):
    """Story texts and dialogue of a campaign: `speaker=` and translatable `message=`/`story=`."""
    text = _text_file(path)
    out, speaker = [], None
    for m in re.finditer(r"\[(/?\w+)\]|speaker=(\w[\w ]*)|"
                         r"(message|story|description|text|summary)\s*=\s*_\s*\"((?:[^\"]|\"\")*)\"", text):
        tag, who, _, body = m.groups()
        if tag:
            if tag in ("message", "/message"):
                speaker = None
        elif who:
            speaker = who.strip()
        else:
            body = re.sub(r"<[^>]*>", "", body.replace('""', '"'))
            body = "\n\n".join(" ".join(p.split()) for p in re.split(r"\n\s*\n", body))
            body = re.sub(r"^\s*[-a-z_ ^]*\^", "", body)
            if len(body) < 30:
                continue
            named = speaker and speaker not in ("narrator", "unit", "second_unit") and speaker[0].isupper()
            out.append(f"{speaker}: {body}" if named else body)
    yield path.name, "\n\n".join(out)


def endless_sky(path):
    text = _text_file(path)
    for n, block in enumerate(re.split(r"\n(?=\S)", text)):
        out = []
        for m in re.finditer(r"`([^`]*)`|^\s+(?:log|dialog|description)\s+\"([^\"]{30,})\"", block, re.M):
            line = " ".join((m.group(1) or m.group(2) or "").split())
            line = line.replace("<first>", "Robin").replace("<last>", "Hale")
            if line and "<" not in line:
                out.append(line)
        yield f"{path.stem}:{n}", "\n\n".join(out)


def json_strings(path):
    keys = {"description", "text", "dynamic_line", "snippet", "yes", "no", "entry", "message", "str",
            "desc", "sound", "snippets", "info"}
    out = []

    def walk(node, key):
        if isinstance(node, dict):
            for k, v in node.items():
                walk(v, k)
        elif isinstance(node, list):
            for v in node:
                walk(v, key)
        elif isinstance(node, str) and key in keys and len(node) >= 40 and " " in node:
            text = re.sub(r"</?color[^>]*>", "", node)
            if "<" not in text and "%" not in text:
                out.append("\n\n".join(" ".join(p.split()) for p in text.split("\n")))

    try:
        walk(json.loads(_text_file(path)), "")
    except json.JSONDecodeError:
        return
    for n in range(0, len(out), 60):
        yield f"{path.name}:{n}", "\n\n".join(out[n:n + 60])


def crossfire(path):
    if not path.is_file() or path.suffix in (".png", ".py", ".tar", ".gz", ".xml"):
        return
    blocks = re.findall(r"^(?:msg|maplore)\n(.*?)^end(?:msg|maplore)$", _text_file(path), re.S | re.M)
    out = []
    for block in blocks:
        block = re.sub(r"^@match.*$", "\n", block, flags=re.M)
        block = re.sub(r"\[/?\w+(=[^\]]*)?\]", "", block)
        out += [" ".join(p.split()) for p in re.split(r"\n\s*\n", block)]
    yield str(path), "\n\n".join(p for p in out if len(p) >= 30)


def crawl(path):
    out = []
    for entry in re.split(r"^%%%%.*$", _text_file(path), flags=re.M):
        entry = re.sub(r"^#.*$", "", entry, flags=re.M).strip()
        _, _, body = entry.partition("\n")
        if "{{" in body or "@" in body or "w:" in body:
            continue
        body = re.sub(r"<[^>]*>", "", body)
        out += [" ".join(p.split()) for p in re.split(r"\n\s*\n", body)]
    out = [p for p in out if len(p) >= 30]
    for n in range(0, len(out), 60):
        yield f"{path.name}:{n}", "\n\n".join(out[n:n + 60])


def dictd(path):
    text = _text_file(path)
    text = re.sub(r"^\s*\[(1913 Webster|PJC|WordNet[^\]]*|Webster[^\]]*|GG|RDH)[^\]]*\]\s*$", "", text, flags=re.M)
    text = re.sub(r"\[syn:[^\]]*\]|\[ant:[^\]]*\]|[{}]", "", text)
    text = re.sub(r"\[(1913 Webster[^\]]*|PJC)\]", "", text)
    text = re.sub(r"\\[A-Z][^\\\n]*\\", "", text)
    entries = [e for e in re.split(r"\n(?=\S)", text)]
    group, size, n = [], 0, 0
    for entry in entries:
        paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", entry)]
        entry = "\n\n".join(p for p in paragraphs if p)
        group.append(entry)
        size += len(entry)
        if size > 6000:
            yield f"{path.stem}:{n}", "\n\n".join(group)
            group, size, n = [], 0, n + 1


def fortunes(path):
    if path.suffix in (".dat", ".u8") or not path.is_file():
        return
    entries = []
    for e in re.split(r"\n%\n", _text_file(path)):
        entries.append("\n".join(" ".join(line.split()) for line in e.strip().split("\n")))
    for n in range(0, len(entries), 20):
        yield f"{path.name}:{n}", "\n\n".join(entries[n:n + 20])


def pod(path):
    out = []
    for p in re.split(r"\n\s*\n", _text_file(path)):
        if p.startswith((" ", "\t", "=for", "=begin", "=cut", "=encoding", "=over", "=back")):
            continue
        p = re.sub(r"^=\w+\s*\d*\s*\*?", "", p)
        for _ in range(3):
            p = re.sub(r"[A-Z]<<+ (.*?) >>+", r"\1", p, flags=re.S)
            p = re.sub(r"[A-Z]<([^<>]*)>", lambda m: m.group(1).split("|")[0], p)
        out.append(" ".join(p.split()))
    yield path.name, "\n\n".join(p for p in out if p)


_ROFF = [(r"\\f(\(..|\[[^\]]*\]|.)", ""), (r"\\-", "-"), (r"\\\(aq", "'"), (r"\\\(dq", '"'),
         (r"\\\((bu|em|en|co|lq|rq|oq|cq|ha|ti|rs)", ""), (r"\\&|\\/|\\,|\\\||\\\^|\\c", ""),
         (r"\\e", r"\\"), (r"\\ ", " "), (r"\\s[-+]?\d", ""), (r"\\\*\(..", ""), (r'\\".*', "")]


def roff(path):
    paragraphs, words, example = [], [], False

    def flush():
        if words:
            paragraphs.append(" ".join(" ".join(words).split()))
            words.clear()

    for line in _text_file(path).split("\n"):
        for pattern, repl in _ROFF:
            line = re.sub(pattern, repl, line)
        if line.startswith((".EX", ".nf", ".TS")):
            example = True
        elif line.startswith((".EE", ".fi", ".TE")):
            example = False
        elif example or line.startswith("'\\"):
            continue
        elif line.startswith(".SH") or line.startswith(".SS"):
            flush()
            words.append(line[3:].strip().strip('"').capitalize())
            flush()
        elif line.startswith((".PP", ".TP", ".IP", ".LP", ".P", ".HP", ".RS", ".RE", ".sp", ".br")) or not line:
            flush()
        elif re.match(r"\.(B|I|SM|SB)\b", line):
            words.append(line[3:].replace('"', ""))
        elif re.match(r"\.(BR|IR|RB|RI|BI|IB)\b", line):
            words.append("".join(re.findall(r'"([^"]*)"|(\S+)', line[3:])
                                 and ["".join(t) for t in re.findall(r'"([^"]*)"|(\S+)', line[3:])]))
        elif not line.startswith((".", "'")):
            words.append(line)
    flush()
    yield path.name, "\n\n".join(paragraphs)


READERS = {"html": html_doc, "mallard": mallard, "plain": plain, "r_strings": r_strings, "sword": sword,
           "wesnoth": wesnoth, "endless_sky": endless_sky, "json_strings": json_strings,
           "crossfire": crossfire, "crawl": crawl, "dictd": dictd, "fortunes": fortunes, "pod": pod,
           "roff": roff}
