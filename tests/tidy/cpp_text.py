"""C++ without its comments and literals, line structure kept, so that rules look at code only."""


def _skip_quoted(text, i):
    """Index after the literal that starts with the quote at i."""
    quote = text[i]
    i += 1
    while i < len(text) and text[i] != quote and text[i] != "\n":
        i += 2 if text[i] == "\\" else 1
    return i + 1


def _blank(part):
    return "".join(c if c == "\n" else " " for c in part)


def strip(text):
    """The same text with comments and the insides of literals replaced by spaces."""
    out = []
    i = 0
    while i < len(text):
        c = text[i]
        if text.startswith("//", i):
            end = text.find("\n", i)
            end = len(text) if end < 0 else end
            out.append(_blank(text[i:end]))
        elif text.startswith("/*", i):
            end = text.find("*/", i + 2)
            end = len(text) if end < 0 else end + 2
            out.append(_blank(text[i:end]))
        elif c == '"' and i > 0 and text[i - 1] == "R":
            delimiter = text[i + 1:text.find("(", i)]
            end = text.find(")" + delimiter + '"', i)
            end = len(text) if end < 0 else end + len(delimiter) + 2
            out.append(_blank(text[i:end]))
        elif c == '"':
            end = _skip_quoted(text, i)
            out.append(_blank(text[i:end]))
        elif c == "'" and not (i > 0 and (text[i - 1].isalnum() or text[i - 1] == "_")):
            end = _skip_quoted(text, i)
            out.append(_blank(text[i:end]))
        else:
            out.append(c)
            i += 1
            continue
        i = end
    return "".join(out)
