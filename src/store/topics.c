/* What a transaction changes is published once it is committed, never before. */
#include "store/internal.h"

GPtrArray *sp_topics_new(void)
{
    return g_ptr_array_new_with_free_func(g_free);
}

void sp_topics_add(GPtrArray *topics, const char *topic)
{
    if (topic && topic[0])
        g_ptr_array_add(topics, g_strdup(topic));
}

void sp_topics_add_node(GPtrArray *topics, const char *node)
{
    g_ptr_array_add(topics, sp_store_node_topic(node));
}

void sp_topics_publish(struct sp_store *store, GPtrArray *topics)
{
    for (unsigned i = 0; i < topics->len; i++)
        sp_store_publish(store, topics->pdata[i]);
}
