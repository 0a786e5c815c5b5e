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

int add_validity(growing *valid, Py_ssize_t row, int is_null)
{
    if (valid->array == NULL && !is_null)
        return 0;
    Py_ssize_t bytes = (row >> 3) + 1;
    if (bytes > valid->used) {
        if (grow(valid, bytes - valid->used, PY_SSIZE_T_MAX) < 0)
            return -1;
        /* Of the first null, all rows before it are valid. */
        memset(valid->begin + valid->used, valid->used ? 0 : 0xff, (size_t)(bytes - valid->used));
        if (!valid->used)
            valid->begin[row >> 3] = (uint8_t)((1u << (row & 7)) - 1);
        valid->used = bytes;
    }
    if (!is_null)
        valid->begin[row >> 3] |= (uint8_t)(1u << (row & 7));
    return 0;
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
    Py_ssize_t at = row * it->step;
    int64_t begin = number_at(it->offsets, at), end = number_at(it->offsets, at + 1);
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
    if (!PyArg_ParseTuple(given, "OOOnnn", &data, &offsets, &valid, &it->first, &it->count,
                          &it->step))
        return -1;
    if (it->step != 1 && it->step != 2) {
        PyErr_SetString(PyExc_ValueError, "the step of a column is 1 or 2");
        return -1;
    }
    it->data = hold(it, data, &it->data_bytes);
    it->offsets = it->data == NULL ? NULL : hold(it, offsets, &offsets_bytes);
    if (it->offsets == NULL)
        return -1;
    Py_ssize_t offsets_count = offsets_bytes / (Py_ssize_t)sizeof(int64_t);
    /* With a step of 1, a row ends where the next one begins, and the last one needs an end. */
    Py_ssize_t rows_most = it->step == 2 ? offsets_count / 2 : offsets_count - 1;
    int fits = it->first >= 0 && it->count >= 0 &&
               (!it->count || (it->first < rows_most && it->count <= rows_most - it->first));
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

/* The sizes of all rows together, or -1. */
static Py_ssize_t bytes_of(const pieces *from)
{
    piece it;
    Py_ssize_t bytes = 0;
    for (Py_ssize_t row = 0; row < from->count; row++) {
        if (take_piece(from, row, &it) < 0)
            return -1;
        /* Rows of a column may be the same bytes. */
        if (it.size > PY_SSIZE_T_MAX - bytes) {
            PyErr_NoMemory();
            return -1;
        }
        bytes += it.size;
    }
    return bytes;
}

/* size_bytes(column) */
PyObject *records_size_bytes(PyObject *module, PyObject *column)
{
    pieces it;
    (void)module;
    Py_ssize_t bytes = open_pieces(column, &it) < 0 ? -1 : bytes_of(&it);
    close_pieces(&it);
    return bytes < 0 ? NULL : PyLong_FromSsize_t(bytes);
}

/* A column as Arrow has it, made of others. */
typedef struct {
    growing data, offsets, valid;
    Py_ssize_t rows;
} joined;

static int join(joined *to, const pieces *from)
{
    piece it;
    Py_ssize_t bytes = bytes_of(from);
    if (bytes < 0)
        return -1;
    if (grow(&to->data, bytes, PY_SSIZE_T_MAX) < 0 ||
        grow(&to->offsets, from->count * (Py_ssize_t)sizeof(int64_t), PY_SSIZE_T_MAX) < 0)
        return -1;
    for (Py_ssize_t row = 0; row < from->count; row++) {
        /* Bytes that somebody changes meanwhile would be others, so that the room is looked at. */
        if (take_piece(from, row, &it) < 0)
            return -1;
        if (it.size > to->data.room - to->data.used) {
            PyErr_SetString(PyExc_ValueError, "a column has changed");
            return -1;
        }
        add_bytes(&to->data, it.data, it.size);
        add_number(&to->offsets, to->data.used);
        if (add_validity(&to->valid, to->rows++, it.data == NULL) < 0)
            return -1;
    }
    return 0;
}

/* joined(columns) */
PyObject *records_joined(PyObject *module, PyObject *columns)
{
    joined all;
    (void)module;
    memset(&all, 0, sizeof all);
    if (!PyList_Check(columns)) {
        PyErr_SetString(PyExc_TypeError, "columns are a list");
        return NULL;
    }
    int failed = grow(&all.offsets, (Py_ssize_t)sizeof(int64_t), PY_SSIZE_T_MAX) < 0;
    if (!failed)
        add_number(&all.offsets, 0);
    for (Py_ssize_t i = 0; !failed && i < PyList_Size(columns); i++) {
        pieces it;
        PyObject *column = PyList_GetItem(columns, i);
        failed = open_pieces(column, &it) < 0 || join(&all, &it) < 0;
        close_pieces(&it);
    }
    PyObject *data = failed ? NULL : grown(&all.data);
    PyObject *offsets = failed ? NULL : grown(&all.offsets);
    PyObject *valid = Py_None;
    if (!failed && all.valid.array != NULL)
        valid = grown(&all.valid);
    else
        Py_INCREF(valid);
    Py_CLEAR(all.data.array);
    Py_CLEAR(all.offsets.array);
    Py_CLEAR(all.valid.array);
    if (data != NULL && offsets != NULL && valid != NULL)
        return Py_BuildValue("(NNNnnn)", data, offsets, valid, (Py_ssize_t)0, all.rows,
                             (Py_ssize_t)1);
    Py_XDECREF(data);
    Py_XDECREF(offsets);
    Py_XDECREF(valid);
    return NULL;
}
