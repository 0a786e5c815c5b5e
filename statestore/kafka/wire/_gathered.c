/* The records of a set, gathered in lists of Python objects or in columns as Arrow has them. */

#include "_records.h"

#define NUMBER ((Py_ssize_t)sizeof(int64_t))

static void add_number(growing *it, int64_t number)
{
    memcpy(it->begin + it->used, &number, sizeof number);
    it->used += NUMBER;
}

static int append(PyObject *list, PyObject *item)
{
    if (item == NULL)
        return -1;
    int failed = PyList_Append(list, item);
    Py_DECREF(item);
    return failed;
}

static PyObject *bytes_or_none(const piece *it)
{
    if (it->data != NULL)
        return PyBytes_FromStringAndSize((const char *)it->data, it->size);
    Py_INCREF(Py_None);
    return Py_None;
}

int gather_begin(gathered *all, int as_columns)
{
    memset(all, 0, sizeof *all);
    all->as_columns = as_columns;
    if (!as_columns) {
        all->key_list = PyList_New(0);
        all->value_list = PyList_New(0);
        all->time_list = PyList_New(0);
        return all->key_list && all->value_list && all->time_list ? 0 : -1;
    }
    /* The first row begins at 0. */
    if (grow(&all->keys.offsets, NUMBER, PY_SSIZE_T_MAX) < 0 ||
        grow(&all->values.offsets, NUMBER, PY_SSIZE_T_MAX) < 0)
        return -1;
    add_number(&all->keys.offsets, 0);
    add_number(&all->values.offsets, 0);
    return 0;
}

static void end_column(column *it)
{
    Py_CLEAR(it->data.array);
    Py_CLEAR(it->offsets.array);
    Py_CLEAR(it->valid.array);
}

void gather_end(gathered *all)
{
    Py_CLEAR(all->key_list);
    Py_CLEAR(all->value_list);
    Py_CLEAR(all->time_list);
    Py_CLEAR(all->headers);
    Py_CLEAR(all->times.array);
    Py_CLEAR(all->offsets.array);
    end_column(&all->keys);
    end_column(&all->values);
}

static int column_room(column *it, Py_ssize_t records, Py_ssize_t bytes)
{
    return grow(&it->data, bytes, PY_SSIZE_T_MAX) < 0 ||
                   grow(&it->offsets, records * NUMBER, PY_SSIZE_T_MAX) < 0
               ? -1
               : 0;
}

int gather_room(gathered *all, Py_ssize_t records, Py_ssize_t bytes)
{
    /* There are fewer records than bytes, so the products do not overflow. */
    if (grow(&all->offsets, records * NUMBER, PY_SSIZE_T_MAX) < 0)
        return -1;
    if (!all->as_columns)
        return 0;
    if (grow(&all->times, records * NUMBER, PY_SSIZE_T_MAX) < 0 ||
        column_room(&all->keys, records, bytes) < 0)
        return -1;
    return column_room(&all->values, records, bytes);
}

/* Note whether a row is null; nothing is noted until the first one is. */
static int add_validity(growing *valid, Py_ssize_t row, int is_null)
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

static int add_piece(column *to, Py_ssize_t row, const piece *it)
{
    if (it->size) {
        memcpy(to->data.begin + to->data.used, it->data, (size_t)it->size);
        to->data.used += it->size;
    }
    add_number(&to->offsets, to->data.used);
    return add_validity(&to->valid, row, it->data == NULL);
}

/* The list of headers begins with the first record that has any. */
static int add_headers(gathered *all, PyObject *headers)
{
    if (all->headers == NULL) {
        if (headers == NULL)
            return 0;
        all->headers = PyList_New(0);
        int failed = all->headers == NULL;
        for (Py_ssize_t i = 0; !failed && i < all->count; i++)
            failed = append(all->headers, PyTuple_New(0)) < 0;
        if (failed) {
            Py_DECREF(headers);
            return -1;
        }
    }
    return append(all->headers, headers == NULL ? PyTuple_New(0) : headers);
}

int gather_add(gathered *all, const record *r, PyObject *headers)
{
    if (add_headers(all, headers) < 0)
        return -1;
    if (all->as_columns) {
        if (add_piece(&all->keys, all->count, &r->key) < 0 ||
            add_piece(&all->values, all->count, &r->value) < 0)
            return -1;
        add_number(&all->times, r->timestamp);
    } else if (append(all->key_list, bytes_or_none(&r->key)) < 0 ||
               append(all->value_list, bytes_or_none(&r->value)) < 0 ||
               append(all->time_list, PyLong_FromLongLong(r->timestamp)) < 0)
        return -1;
    add_number(&all->offsets, r->offset);
    all->count++;
    all->bytes += r->key.size + r->value.size;
    return 0;
}

/* A range if no offset is missing, else a list or the numbers themselves. */
static PyObject *offsets_of(gathered *all, int64_t start)
{
    const uint8_t *numbers = all->offsets.begin;
    int64_t first = all->count ? number_at(numbers, 0) : start;
    int64_t last = all->count ? number_at(numbers, all->count - 1) : first - 1;
    if (last - first + 1 == all->count)
        return PyObject_CallFunction((PyObject *)&PyRange_Type, "LL", (long long)first,
                                     (long long)last + 1);
    if (all->as_columns)
        return grown(&all->offsets);
    PyObject *made = PyList_New(all->count);
    for (Py_ssize_t i = 0; made != NULL && i < all->count; i++) {
        PyObject *offset = PyLong_FromLongLong(number_at(numbers, i));
        if (offset == NULL || PyList_SetItem(made, i, offset) < 0)
            Py_CLEAR(made);
    }
    return made;
}

/* A ByteColumn as a plain tuple. */
static PyObject *column_of(column *it, Py_ssize_t count)
{
    PyObject *data = grown(&it->data), *offsets = grown(&it->offsets), *valid = Py_None;
    if (it->valid.array != NULL)
        valid = grown(&it->valid);
    else
        Py_INCREF(valid);
    if (data != NULL && offsets != NULL && valid != NULL)
        return Py_BuildValue("(NNNnn)", data, offsets, valid, (Py_ssize_t)0, count);
    Py_XDECREF(data);
    Py_XDECREF(offsets);
    Py_XDECREF(valid);
    return NULL;
}

PyObject *gather_result(gathered *all, int64_t start, int64_t next_offset)
{
    PyObject *keys, *values, *times, *offsets = offsets_of(all, start);
    if (all->as_columns) {
        keys = column_of(&all->keys, all->count);
        values = column_of(&all->values, all->count);
        times = grown(&all->times);
    } else {
        keys = all->key_list;
        values = all->value_list;
        times = all->time_list;
        all->key_list = all->value_list = all->time_list = NULL;
    }
    if (offsets != NULL && keys != NULL && values != NULL && times != NULL)
        return Py_BuildValue("(NNNNOLL)", keys, values, times, offsets,
                             all->headers == NULL ? Py_None : all->headers, (long long)next_offset,
                             (long long)all->bytes);
    Py_XDECREF(keys);
    Py_XDECREF(values);
    Py_XDECREF(times);
    Py_XDECREF(offsets);
    return NULL;
}
