/* Keys and values as lists of bytes, or as columns: contiguous bytes, and where each one begins. */

#include "_records.h"

int grow(growing *it, Py_ssize_t more, Py_ssize_t most)
{
    if (more <= it->room - it->used)
        return 0;
    if (more > most - it->used) {
        PyErr_SetString(PyExc_ValueError, "a batch cannot have 2 GiB or more");
        return -1;
    }
    Py_ssize_t wanted = it->used + more;
    Py_ssize_t room = wanted > most / 2 ? most : 2 * wanted;
    if (it->array == NULL)
        it->array = PyByteArray_FromStringAndSize(NULL, room);
    else if (PyByteArray_Resize(it->array, room) < 0)
        return -1;
    if (it->array == NULL)
        return -1;
    it->begin = (uint8_t *)PyByteArray_AsString(it->array);
    it->room = room;
    return 0;
}

PyObject *grown(growing *it)
{
    PyObject *array = it->array;
    it->array = NULL;
    if (array == NULL)
        return PyByteArray_FromStringAndSize("", 0);
    if (PyByteArray_Resize(array, it->used) < 0)
        Py_CLEAR(array);
    return array;
}

int take_bytes(PyObject *given, piece *taken)
{
    if (given == Py_None) {
        taken->data = NULL;
        taken->size = 0;
        return 0;
    }
    if (given == NULL || !PyBytes_Check(given)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "keys, values and those of headers are bytes or None");
        return -1;
    }
    taken->data = (const uint8_t *)PyBytes_AsString(given);
    taken->size = PyBytes_Size(given);
    return 0;
}

int take_from_column(const pieces *it, Py_ssize_t row, piece *taken)
{
    row += it->first;
    if (it->valid != NULL && !(it->valid[row >> 3] >> (row & 7) & 1)) {
        taken->data = NULL;
        taken->size = 0;
        return 0;
    }
    int64_t begin = number_at(it->offsets, row), end = number_at(it->offsets, row + 1);
    if (begin < 0 || end < begin || end > it->data_bytes) {
        PyErr_SetString(PyExc_ValueError, "an offset of a column is outside its data");
        return -1;
    }
    taken->data = it->data + begin;
    taken->size = (Py_ssize_t)(end - begin);
    return 0;
}

static const uint8_t *hold(pieces *it, PyObject *buffer, Py_ssize_t *size)
{
    Py_buffer *view = &it->views[it->held];
    if (PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE) < 0)
        return NULL;
    it->held++;
    *size = view->len;
    return view->len ? view->buf : (const uint8_t *)"";
}

/* What is opened has to be closed, whether that failed or not. */
int open_pieces(PyObject *given, pieces *it)
{
    PyObject *data, *offsets, *valid;
    Py_ssize_t offsets_bytes, valid_bytes;
    memset(it, 0, sizeof *it);
    if (PyList_Check(given)) {
        it->list = given;
        it->count = PyList_Size(given);
        return 0;
    }
    if (!PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "keys and values are a list or a ByteColumn");
        return -1;
    }
    if (!PyArg_ParseTuple(given, "OOOnn", &data, &offsets, &valid, &it->first, &it->count))
        return -1;
    it->data = hold(it, data, &it->data_bytes);
    it->offsets = it->data == NULL ? NULL : hold(it, offsets, &offsets_bytes);
    if (it->offsets == NULL)
        return -1;
    Py_ssize_t offsets_count = offsets_bytes / (Py_ssize_t)sizeof(int64_t);
    int fits = it->first >= 0 && it->count >= 0 &&
               (!it->count || (it->first < offsets_count &&
                               it->count < offsets_count - it->first));
    if (valid != Py_None) {
        it->valid = hold(it, valid, &valid_bytes);
        if (it->valid == NULL)
            return -1;
        fits = fits && (!it->count || (it->first + it->count - 1) >> 3 < valid_bytes);
    }
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "a column has more rows than its buffers");
    return fits ? 0 : -1;
}

void close_pieces(pieces *it)
{
    while (it->held)
        PyBuffer_Release(&it->views[--it->held]);
}

static PyObject *cut_row(const pieces *it, Py_ssize_t row)
{
    piece found;
    if (take_piece(it, row, &found) < 0)
        return NULL;
    if (found.data != NULL)
        return PyBytes_FromStringAndSize((const char *)found.data, found.size);
    Py_INCREF(Py_None);
    return Py_None;
}

/* The row that stands at a place of a list of rows, or the place itself without such a list. */
static Py_ssize_t row_at(const pieces *it, PyObject *rows, Py_ssize_t place)
{
    if (rows == Py_None)
        return place;
    PyObject *number = PyList_GetItem(rows, place);
    if (number == NULL)
        return -1;
    /* Only a whole number: an object that converts itself could change the list meanwhile. */
    if (!PyLong_Check(number)) {
        PyErr_SetString(PyExc_TypeError, "rows are whole numbers");
        return -1;
    }
    Py_ssize_t row = PyLong_AsSsize_t(number);
    if (!PyErr_Occurred() && (row < 0 || row >= it->count))
        PyErr_SetString(PyExc_IndexError, "the column does not have that row");
    return PyErr_Occurred() ? -1 : row;
}

/* cut(column, rows) */
PyObject *records_cut(PyObject *module, PyObject *arguments)
{
    PyObject *given, *rows, *made = NULL;
    pieces it;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO", &given, &rows))
        return NULL;
    if (rows != Py_None && !PyList_Check(rows)) {
        PyErr_SetString(PyExc_TypeError, "rows are a list or None");
        return NULL;
    }
    if (open_pieces(given, &it) == 0) {
        Py_ssize_t count = rows == Py_None ? it.count : PyList_Size(rows);
        made = PyList_New(count);
        for (Py_ssize_t place = 0; made != NULL && place < count; place++) {
            Py_ssize_t row = row_at(&it, rows, place);
            PyObject *bytes = row < 0 ? NULL : cut_row(&it, row);
            if (bytes == NULL || PyList_SetItem(made, place, bytes) < 0)
                Py_CLEAR(made);
        }
    }
    close_pieces(&it);
    return made;
}
