#include "node/slots.h"

bool sp_slots_claim(struct sp_slots *slots, unsigned slot)
{
    if (slot >= SP_SLOTS)
        return false;
    uint64_t bit = (uint64_t)1 << (slot % 64);
    if (slots->used[slot / 64] & bit)
        return false;
    slots->used[slot / 64] |= bit;
    slots->n_used++;
    return true;
}

int sp_slots_take(struct sp_slots *slots)
{
    for (unsigned i = 0; i < SP_SLOTS; i++) {
        unsigned slot = (slots->next + i) % SP_SLOTS;
        if (!sp_slots_claim(slots, slot))
            continue;
        slots->next = (slot + 1) % SP_SLOTS;
        return (int)slot;
    }
    return -1;
}

void sp_slots_release(struct sp_slots *slots, unsigned slot)
{
    if (slot >= SP_SLOTS)
        return;
    uint64_t bit = (uint64_t)1 << (slot % 64);
    if (!(slots->used[slot / 64] & bit))
        return;
    slots->used[slot / 64] &= ~bit;
    slots->n_used--;
}
