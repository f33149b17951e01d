"""Words of made-up products. No two kinds share a word; attributes are no nouns of a title."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """`name`: of one thing; `query`: of many; `path`: categories; `choices`: its second option."""

    name: str
    query: str
    category: str
    path: str
    attributes: tuple[str, ...]
    choices: str


COLOURS = ("black", "blue", "brown", "gold", "green", "grey", "pink", "purple", "red", "white")
CHOICES: dict[str, tuple[str, ...]] = {
    "size": ("small", "medium", "large"),
    "flavor": ("vanilla", "cherry", "almond", "ginger"),
    "scent": ("jasmine", "cedar", "citrus", "amber"),
    "style": ("modern", "rustic", "nordic", "retro"),
    "material": ("cotton", "bamboo", "leather", "ceramic"),
}
BRANDS = (
    "Abrix Belvor Corvane Dellmo Estrin Fenwold Galdor Hestia Imbrel Jorvik Keldon Lumora Mirwen "
    "Nordell Ostera Pellic Quindra Rovane Selkar Tovell Ulmira Vandre Wexlow Xandor Yorvel Zephra"
)
_HOME, _KITCHEN = "Home & Garden › Furniture › ", "Home & Garden › Kitchen & Dining › "
_WEAR, _TECH = "Clothing › Everyday › ", "Electronics › Accessories › "
_FOOD, _CARE = "Grocery › Pantry › ", "Beauty & Personal Care › Daily › "
_FURNITURE = ("foldable", "padded", "adjustable", "stackable", "lightweight")
_WARE = ("reusable", "insulated", "unbreakable", "handmade", "washable")
_CLOTHES = ("breathable", "washable", "soft", "lined", "waterproof")
_DEVICE = ("wireless", "portable", "rechargeable", "adjustable", "waterproof")
_EATEN = ("organic", "sweetened", "roasted", "seedless", "dried")
_CREAMS = ("scented", "organic", "soothing", "oily", "moisturizing")
KINDS = (
    Kind("office chair", "office chairs", "garden", _HOME + "Seating", _FURNITURE, "style"),
    Kind("bunk bed", "bunk beds", "garden", _HOME + "Bedroom", _FURNITURE, "size"),
    Kind("side table", "side tables", "garden", _HOME + "Living Room", _FURNITURE, "style"),
    Kind("book shelf", "book shelves", "garden", _HOME + "Storage", _FURNITURE, "material"),
    Kind("tea cup", "tea cups", "garden", _KITCHEN + "Drinkware", _WARE, "material"),
    Kind("lunch box", "lunch boxes", "garden", _KITCHEN + "Food Storage", _WARE, "size"),
    Kind("water bottle", "water bottles", "garden", _KITCHEN + "Travel", _WARE, "size"),
    Kind("soup bowl", "soup bowls", "garden", _KITCHEN + "Tableware", _WARE, "style"),
    Kind("rain coat", "rain coats", "fashion", _WEAR + "Outerwear", _CLOTHES, "size"),
    Kind("running shoe", "running shoes", "fashion", _WEAR + "Footwear", _CLOTHES, "size"),
    Kind("wool scarf", "wool scarves", "fashion", _WEAR + "Winter", _CLOTHES, "style"),
    Kind("sun hat", "sun hats", "fashion", _WEAR + "Summer", _CLOTHES, "size"),
    Kind("desk lamp", "desk lamps", "electronics", _TECH + "Lighting", _DEVICE, "style"),
    Kind("phone charger", "phone chargers", "electronics", _TECH + "Power", _DEVICE, "size"),
    Kind("radio speaker", "radio speakers", "electronics", _TECH + "Audio", _DEVICE, "style"),
    Kind("game mouse", "game mice", "electronics", _TECH + "Input", _DEVICE, "size"),
    Kind("oat cookie", "oat cookies", "grocery", _FOOD + "Bakery", _EATEN, "flavor"),
    Kind("nut bar", "nut bars", "grocery", _FOOD + "Snacks", _EATEN, "flavor"),
    Kind("berry jam", "berry jams", "grocery", _FOOD + "Spreads", _EATEN, "size"),
    Kind("rice cracker", "rice crackers", "grocery", _FOOD + "Savoury", _EATEN, "flavor"),
    Kind("hand cream", "hand creams", "beauty", _CARE + "Skin", _CREAMS, "scent"),
    Kind("bath soap", "bath soaps", "beauty", _CARE + "Washing", _CREAMS, "scent"),
    Kind("hair oil", "hair oils", "beauty", _CARE + "Hair", _CREAMS, "scent"),
    Kind("face mask", "face masks", "beauty", _CARE + "Masks", _CREAMS, "size"),
)
