"""What expressions in code stand for, as far as imports and assignments say."""

import ast
import re
from collections.abc import Sequence
from typing import Any

# transformers' BERT models: "TFBert", with the task behind it, stands for all of them.
_BERT = re.compile(r"^TF(?:AutoModel|(?:Distil)?Bert(?:Model)?)(?![a-z])")
_MAYBE_BERT = re.compile(r"(?:^|[._])(?:model|bert|transformer)$")
_LABELS = ("labels", "start_positions", "next_sentence_label")
_KERAS = ("tensorflow.", "keras.", "tf_keras.")
_FUNCTION = re.compile("(?:build|create|get|init|load|make)_")  # makes a tokenizer, is none
PREPROCESSOR = " of a preprocessor"
_FOLLOWED = (
    ast.Assign,
    ast.AnnAssign,
    ast.NamedExpr,
    ast.ClassDef,
    ast.FunctionDef,
    ast.Return,
    ast.Call,
)
_CALLS = {"encode", "encode_plus", "batch_encode_plus", "predict", "predict_on_batch"}


class Values:
    """The values of one file by the class that made them.

    Descriptions are the name of the class, such as "KerasLayer", "BertTokenizer" or, of all BERT
    models of transformers, "TFBert" and the task: "TFBertForQuestionAnswering". What a model or
    tokenizer returns has "()" behind it.
    """

    def __init__(self) -> None:
        self.aliases: dict[str, str] = {}  # name in the code -> dotted path of the import
        self.stars: list[str] = []  # modules that everything was imported from
        self.source = 0  # number of the cell, or block, that is looked at
        self._subclasses: dict[str, str] = {}  # name -> path of an imported base class
        self._bound: dict[str, list[tuple[tuple[int, int], str]]] = {}  # expression -> where, what
        self._texts: dict[str, str] = {}  # expression -> the string that it is bound to
        self._arguments: dict[tuple[str, str], str] = {}  # function, parameter -> argument
        self._returned: dict[str, list[str]] = {}  # function -> what it returns

    def learn(self, cells: Sequence[Sequence[ast.AST]]) -> None:
        """Follows the assignments among the nodes of all cells, in their order."""
        nodes = [(number, node) for number, cell in enumerate(cells) for node in cell]
        functions = {node.name: node for _, node in nodes if isinstance(node, ast.FunctionDef)}
        owners = {id(node): name for name in functions for node in ast.walk(functions[name])}
        ordered = sorted(
            ((number, node.lineno, node) for number, node in nodes if isinstance(node, _FOLLOWED)),
            key=lambda item: item[:2],
        )
        for _ in range(2):  # the second time with the arguments of functions defined before
            self._bound.clear()
            for self.source, _, node in ordered:
                if isinstance(node, ast.Assign):
                    for target in node.targets:
                        self._bind(target, node.value)
                elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value:
                    self._bind(node.target, node.value)
                elif isinstance(node, ast.ClassDef):
                    for base in filter(None, map(self.path, node.bases)):
                        self._subclasses[node.name] = base
                elif isinstance(node, ast.FunctionDef):
                    for parameter in node.args.args:
                        if known := self._arguments.get((node.name, parameter.arg)):
                            self._set(parameter.arg, node.lineno, known)
                elif isinstance(node, ast.Return) and node.value and id(node) in owners:
                    several = isinstance(node.value, ast.Tuple)
                    values = node.value.elts if several else [node.value]  # type: ignore[attr-defined]
                    self._returned[owners[id(node)]] = [self.what(value) for value in values]
                elif isinstance(node, ast.Call) and (name := last_name(node.func)) in functions:
                    names = [x.arg for x in functions[name].args.args if x.arg != "self"]
                    arguments = [*zip(names, node.args, strict=False)]
                    arguments += [(x.arg, x.value) for x in node.keywords if x.arg]
                    for argument, value in arguments:
                        if known := self.what(value):
                            self._arguments[name, argument] = known

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            known = self._returned.get(last_name(value), [])
            values: list[Any] = getattr(value, "elts", [])
            for i, part in enumerate(target.elts):
                if len(values) == len(target.elts):
                    self._bind(part, values[i])
                else:
                    what = known[i] if len(known) == len(target.elts) else ""
                    self._set(ast.unparse(part), target.lineno, what)
            return
        name = ast.unparse(target)
        self._set(name, target.lineno, self.what(value))
        self._texts[name] = self.text(value)
        path = self.path(value)
        is_class = path.rpartition(".")[2][:1].isupper() and not path.startswith(_KERAS)
        if isinstance(target, ast.Name) and (is_class or self.is_module(value)):
            self.aliases.setdefault(target.id, path)

    def _set(self, name: str, line: int, what: str) -> None:
        self._bound.setdefault(name, []).append(((self.source, line), what))

    def path(self, node: ast.expr) -> str:
        """The dotted path of an expression that begins with an import; otherwise ""."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id) or self._subclasses.get(node.id, "")
        base, name = _part(node)
        path = "" if base is None else self.path(base)
        return f"{path}.{name}" if path else ""

    def is_module(self, node: ast.expr) -> bool:
        """Whether an expression is a module of a library, such as nlp of tensorflow_models."""
        path = self.path(node)
        is_lower = path.rpartition(".")[2].islower() and not path.startswith(_KERAS)
        return is_lower and isinstance(node, ast.Attribute)

    def is_preprocessor(self, call: ast.Call | None) -> bool:
        """Whether a call loads a preprocessor of TF Hub."""
        if call is None or not self.path(call.func).startswith("tensorflow_hub."):
            return False
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        text = " ".join(f"{ast.unparse(x)} {self.text(x)}" for x in arguments)
        return bool(re.search("preprocess|tokenize|pack_inputs", text, re.IGNORECASE))

    def what(self, node: ast.expr) -> str:
        """The description of a value; "" if it is not known."""
        if isinstance(node, ast.Name | ast.Attribute):
            return self._value_of_name(node)
        if isinstance(node, ast.Subscript):
            if isinstance(node.slice, ast.Slice):
                return self.what(node.value)
            is_layer = ast.unparse(node).endswith(".layers[0]")  # of transformers: the encoder
            owner = self.what(node.value.value) if is_layer else ""  # type: ignore[attr-defined]
            return "TFBert" if owner.startswith("TFBert") else ""
        if not isinstance(node, ast.Call):
            return ""
        if self.path(node.func):
            name = self.called(node.func).split(".")[0]
            return name + PREPROCESSOR if self.is_preprocessor(node) else name
        callee = self.what(node.func)
        is_method = False
        if not callee and isinstance(node.func, ast.Attribute) and node.func.attr in _CALLS:
            callee = self.what(node.func.value)
            is_method = True
        if callee and not callee.endswith("()"):
            has_labels = any(keyword.arg in _LABELS for keyword in node.keywords)
            return f"{callee}{'WithLabels' if has_labels else ''}()"
        name = last_name(node.func)
        if name == "from_pretrained":
            is_tokenizer = "token" in ast.unparse(node.func).lower()
            return "Tokenizer" if is_tokenizer else "TFBert" if self._has_bert() else ""
        if name == "dict" and node.args:
            return self.what(node.args[0])
        returned = self._returned.get(name, [])
        return returned[0] if len(returned) == 1 and not is_method else ""

    def _value_of_name(self, node: ast.Name | ast.Attribute) -> str:
        name = ast.unparse(node)
        if bound := self._bound.get(name):
            before = [what for position, what in bound if position < (self.source, node.lineno)]
            return before[-1] if before else bound[0][1]
        is_encoder = isinstance(node, ast.Attribute) and node.attr in ("bert", "distilbert")
        if is_encoder and self.what(node.value).startswith("TFBert"):  # type: ignore[union-attr]
            return "TFBert"
        return "TFBert" if _MAYBE_BERT.search(name) and self._has_bert() else ""

    def _has_bert(self) -> bool:
        names = [path.rpartition(".")[2] for path in self.aliases.values()]
        return "transformers" in self.stars or any(map(_BERT.match, names))

    def called(self, node: ast.expr) -> str:
        """What is called: a class and its method, or a value, or else its name in small letters."""
        if path := self.path(node):
            parts = path.split(".")
            first = next((i for i, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
            return _BERT.sub("TFBert", ".".join(parts[first:]))
        if what := self.what(node):
            return what
        if isinstance(node, ast.Attribute):
            return f"{self.owner(node.value)}.{node.attr}"
        name = last_name(node).lower()
        return "" if _FUNCTION.match(name) else name

    def owner(self, node: ast.expr) -> str:
        """What a method or attribute belongs to: the value, or else its name in small letters."""
        return self.what(node) or last_name(node).lower()

    def text(self, node: ast.expr | None) -> str:
        """The end of a string that an expression makes, such as a path; "" if it is not known."""
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.Name | ast.Attribute):
            return self._texts.get(ast.unparse(node), "")
        if isinstance(node, ast.BinOp):
            return self.text(node.right if isinstance(node.op, ast.Add) else node.left)
        if isinstance(node, ast.JoinedStr) and node.values:
            return self.text(node.values[-1])
        if isinstance(node, ast.Call) and last_name(node.func) == "join" and node.args:
            return self.text(node.args[-1])
        return ""


def chain(node: ast.expr) -> list[Any]:
    """The expressions a.b.c, a.b and a of a.b.c; getattr(a, "b") is a.b."""
    nodes = [node]
    while (base := _part(nodes[-1])[0]) is not None:
        nodes.append(base)
    return nodes


def _part(node: ast.expr) -> tuple[ast.expr | None, str]:
    """What the last name of an expression belongs to, and that name."""
    if isinstance(node, ast.Attribute):
        return node.value, node.attr
    if isinstance(node, ast.Call) and last_name(node.func) == "getattr" and len(node.args) > 1:
        return node.args[0], str(getattr(node.args[1], "value", "getattr"))
    return None, ""


def last_name(node: ast.expr) -> str:
    """The name of what an expression says: "b" of a.b, a.b[0] and a.b()."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return getattr(node, "attr", getattr(node, "id", ""))
