/* The extension `_record`: Record.replace, which processors call for each record.

   records.py has the same in Python and says what it promises; there, to bind seven keywords takes
   most of the time. Uses the stable interface of Python 3.11 alone. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

enum { FIELDS = 7 };

static const char *const NAMES[FIELDS] = {
    "key", "value", "timestamp_ms", "headers", "topic", "partition", "offset",
};
static PyObject *interned[FIELDS];

/* The place of a field, or -1 with an error. */
static int place_of(PyObject *name)
{
    for (int i = 0; i < FIELDS; i++)
        if (interned[i] == name)
            return i;
    for (int i = 0; i < FIELDS; i++)
        if (PyUnicode_Compare(interned[i], name) == 0)
            return i;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError,
                     "Record.replace() got an unexpected keyword argument '%U'", name);
    return -1;
}

static PyObject *replace(PyObject *self, PyObject *const *arguments, Py_ssize_t positional,
                         PyObject *keywords)
{
    PyObject *fields[FIELDS];
    if (positional != 0) {
        PyErr_Format(PyExc_TypeError, "Record.replace() takes keyword arguments only, %zd given",
                     positional);
        return NULL;
    }
    if (PyTuple_Size(self) != FIELDS) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "Record.replace() wants a Record");
        return NULL;
    }
    for (int i = 0; i < FIELDS; i++)
        fields[i] = PyTuple_GetItem(self, i);
    Py_ssize_t given = keywords == NULL ? 0 : PyTuple_Size(keywords);
    for (Py_ssize_t i = 0; i < given; i++) {
        int place = place_of(PyTuple_GetItem(keywords, i));
        if (place < 0)
            return NULL;
        fields[place] = arguments[i];
    }
    PyTypeObject *type = Py_TYPE(self);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    PyObject *made = allocate(type, FIELDS);
    if (made == NULL)
        return NULL;
    for (int i = 0; i < FIELDS; i++) {
        Py_INCREF(fields[i]);
        PyTuple_SetItem(made, i, fields[i]);
    }
    return made;
}

static PyMethodDef definition_of_replace = {
    "replace",
    (PyCFunction)(void (*)(void))replace,
    METH_FASTCALL | METH_KEYWORDS,
    "replace($self, /, *, key=..., value=..., timestamp_ms=..., headers=..., topic=...,\n"
    "        partition=..., offset=...)\n--\n\n"
    "Return a copy of this record with some fields changed; times are in ms since 1970.",
};

static PyObject *record_method(PyObject *module, PyObject *type)
{
    (void)module;
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "want a type");
        return NULL;
    }
    return PyDescr_NewMethod((PyTypeObject *)type, &definition_of_replace);
}

static PyMethodDef methods[] = {
    {"method", record_method, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static int executed(PyObject *module)
{
    (void)module;
    for (int i = 0; i < FIELDS; i++)
        if (interned[i] == NULL && (interned[i] = PyUnicode_InternFromString(NAMES[i])) == NULL)
            return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)executed}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_record", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__record(void) { return PyModuleDef_Init(&definition); }
